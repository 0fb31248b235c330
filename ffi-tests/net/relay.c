/*
 * An emulated link between two network namespaces that delays and drops packets, for kernels
 * without netem.
 *
 *     relay [-d DELAY_US] [-l LOSS_PPM] [-s SEED] [-q PACKETS] [-r BYTES_PER_S] \
 *         SPACE DEVICE SPACE DEVICE
 *
 * Each SPACE is a name in /run/netns and has the TUN device DEVICE, which exists already (`ip
 * tuntap add`), with an MTU of at most 2048. A packet that leaves one namespace through its
 * device enters the other one DELAY_US later, in order. The relay drops LOSS_PPM packets per
 * million. The choice depends only on SEED, the direction, and the packet's number in its
 * direction. If PACKETS packets are in flight in one direction, further packets are dropped.
 * With a rate, each packet also takes the transmission time of its bytes.
 *
 * The relay neither forwards nor counts multicast packets. The kernel sends them at random times
 * (routers, memberships), so they would change the packet numbers from run to run.
 *
 * The relay ends when its standard input is closed, and is killed when its parent dies. At its
 * end it prints one line with two numbers per word, for the packets from the first and from the
 * second namespace:
 *
 *     forwarded 10 12 lost 0 1 overflowed 0 0
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MTU_MAX 2048
#define NS_PER_S 1000000000u
#define PER_MILLION 1000000u

/* The number of packets from one direction before the relay serves the other direction. */
#define BATCH 64

/* A packet in flight. */
typedef struct packet {
    uint64_t due_ns;
    size_t len;
    unsigned char bytes[MTU_MAX];
} packet_t;

/* The properties of both directions. */
typedef struct line {
    uint64_t delay_ns;
    uint64_t loss_ppm;
    uint64_t seed;
    uint64_t bytes_per_s; /* 0: unlimited */
    size_t capacity;      /* of each queue, in packets */
} line_t;

/* One direction: a ring of packets, in the order of arrival and departure. */
typedef struct direction {
    const line_t *line;
    unsigned number; /* 0 or 1 */
    int from, to;    /* TUN devices */
    packet_t *ring;
    size_t first, count;
    uint64_t busy_until_ns; /* end of the last byte, with a rate */
    uint64_t taken;         /* number of the next packet */
    uint64_t forwarded, lost, overflowed;
} direction_t;

static void fail(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int require(int result, const char *what)
{
    if (result < 0) {
        fail(what);
    }
    return result;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    require(clock_gettime(CLOCK_MONOTONIC, &time), "clock_gettime");
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

/* Spreads the bits of a number over the whole result, so that neighbours are unrelated. */
static uint64_t spread(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Returns true if a packet is dropped. The result is the same in every run. */
static int is_lost(const line_t *line, unsigned direction, uint64_t number)
{
    uint64_t draw = spread(spread(line->seed) + 2 * number + direction);
    return draw % PER_MILLION < line->loss_ppm;
}

static int is_multicast(const unsigned char *bytes, size_t len)
{
    unsigned version = len > 0 ? bytes[0] >> 4 : 0;
    if (version == 4 && len >= 20) {
        return bytes[16] >> 4 == 0xe;
    }
    return version == 6 && len >= 40 && bytes[24] == 0xff;
}

/* Returns the departure time of a packet that arrives now. */
static uint64_t due_ns(direction_t *self, uint64_t now, size_t len)
{
    const line_t *line = self->line;
    if (line->bytes_per_s == 0) {
        return now + line->delay_ns;
    }
    if (self->busy_until_ns < now) {
        self->busy_until_ns = now;
    }
    self->busy_until_ns += (uint64_t)len * NS_PER_S / line->bytes_per_s;
    return self->busy_until_ns + line->delay_ns;
}

/* Reads a packet from the device; returns 0 if there is none. */
static int take_one(direction_t *self)
{
    packet_t dropped;
    int is_full = self->count == self->line->capacity;
    packet_t *packet =
        is_full ? &dropped : &self->ring[(self->first + self->count) % self->line->capacity];
    ssize_t len = read(self->from, packet->bytes, MTU_MAX);
    if (len <= 0) {
        if (len == 0 || errno == EAGAIN || errno == EINTR) {
            return 0;
        }
        fail("reading from a TUN device");
    }
    if (is_multicast(packet->bytes, (size_t)len)) {
        return 1;
    }
    uint64_t number = self->taken++;
    if (is_lost(self->line, self->number, number)) {
        self->lost++;
    } else if (is_full) {
        self->overflowed++;
    } else {
        packet->len = (size_t)len;
        packet->due_ns = due_ns(self, now_ns(), packet->len);
        self->count++;
    }
    return 1;
}

static void take(direction_t *self)
{
    for (int i = 0; i < BATCH && take_one(self); i++) {
    }
}

/* Sends the packets that are due. If the other device refuses a packet (it may be down), the
 * packet counts as an overflow. */
static void deliver(direction_t *self)
{
    uint64_t now = now_ns();
    while (self->count > 0 && self->ring[self->first].due_ns <= now) {
        const packet_t *packet = &self->ring[self->first];
        if (write(self->to, packet->bytes, packet->len) == (ssize_t)packet->len) {
            self->forwarded++;
        } else {
            self->overflowed++;
        }
        self->first = (self->first + 1) % self->line->capacity;
        self->count--;
    }
}

/* Sets the timer to the next departure in either direction. */
static void arm(int timer, const direction_t *directions)
{
    struct itimerspec at = {{0, 0}, {0, 0}};
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        const direction_t *self = &directions[i];
        if (self->count > 0 && self->ring[self->first].due_ns < next) {
            next = self->ring[self->first].due_ns;
        }
    }
    if (next != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(next / NS_PER_S);
        at.it_value.tv_nsec = (long)(next % NS_PER_S);
    }
    require(timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL), "timerfd_settime");
}

enum source { FROM_FIRST, FROM_SECOND, TIMER, INPUT };

static void watch(int epoll, int fd, enum source source)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = source}};
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/* Relays until standard input is closed. */
static void relay(direction_t *directions)
{
    int epoll = require(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    int timer = require(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd_create");
    watch(epoll, directions[0].from, FROM_FIRST);
    watch(epoll, directions[1].from, FROM_SECOND);
    watch(epoll, timer, TIMER);
    watch(epoll, STDIN_FILENO, INPUT);
    for (;;) {
        struct epoll_event events[4];
        int count = epoll_wait(epoll, events, 4, -1);
        if (count < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        for (int i = 0; i < count; i++) {
            uint64_t unused;
            switch (events[i].data.u32) {
            case FROM_FIRST:
            case FROM_SECOND:
                take(&directions[events[i].data.u32]);
                break;
            case TIMER: /* Setting it again makes it unreadable. */
                break;
            default:
                if (read(STDIN_FILENO, &unused, sizeof(unused)) <= 0) {
                    return;
                }
            }
        }
        deliver(&directions[0]);
        deliver(&directions[1]);
        arm(timer, directions);
    }
}

/* Opens a device of another namespace; this process stays in its own namespace. */
static int open_device(const char *space, const char *device)
{
    char path[256];
    struct ifreq request;
    int home = require(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "/proc/self/ns/net");
    snprintf(path, sizeof(path), "/run/netns/%s", space);
    int there = require(open(path, O_RDONLY | O_CLOEXEC), path);
    require(setns(there, CLONE_NEWNET), path);
    /* The file belongs to the namespace in which it is opened. */
    int tun = require(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
    memset(&request, 0, sizeof(request));
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", device);
    require(ioctl(tun, TUNSETIFF, &request), device);
    require(setns(home, CLONE_NEWNET), "the way back to this name space");
    close(there);
    close(home);
    return tun;
}

static void die_with_parent(void)
{
    pid_t parent = getppid();
    require(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    if (getppid() != parent) {
        exit(1);
    }
}

static uint64_t number(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-') {
        fprintf(stderr, "relay: \"%s\" is not a number\n", text);
        exit(2);
    }
    return value;
}

static line_t parse(int argc, char **argv)
{
    line_t line = {.capacity = 2048};
    int option;
    while ((option = getopt(argc, argv, "d:l:s:q:r:")) != -1) {
        switch (option) {
        case 'd':
            line.delay_ns = number(optarg) * 1000;
            break;
        case 'l':
            line.loss_ppm = number(optarg);
            break;
        case 's':
            line.seed = number(optarg);
            break;
        case 'q':
            line.capacity = number(optarg);
            break;
        case 'r':
            line.bytes_per_s = number(optarg);
            break;
        default:
            exit(2);
        }
    }
    if (argc - optind != 4 || line.capacity == 0) {
        fprintf(stderr, "usage: relay [-d DELAY_US] [-l LOSS_PPM] [-s SEED] [-q PACKETS] [-r BYTES_PER_S] "
                        "SPACE DEVICE SPACE DEVICE\n");
        exit(2);
    }
    return line;
}

int main(int argc, char **argv)
{
    line_t line = parse(argc, argv);
    direction_t both[2] = {{.line = &line, .number = 0}, {.line = &line, .number = 1}};
    die_with_parent();
    both[0].from = both[1].to = open_device(argv[optind], argv[optind + 1]);
    both[1].from = both[0].to = open_device(argv[optind + 2], argv[optind + 3]);
    for (int i = 0; i < 2; i++) {
        both[i].ring = calloc(line.capacity, sizeof(packet_t));
        if (both[i].ring == NULL) {
            fail("the queue");
        }
    }
    relay(both);
    printf("forwarded %" PRIu64 " %" PRIu64 " lost %" PRIu64 " %" PRIu64 " overflowed %" PRIu64 " %" PRIu64 "\n",
           both[0].forwarded, both[1].forwarded, both[0].lost, both[1].lost, both[0].overflowed, both[1].overflowed);
    free(both[0].ring);
    free(both[1].ring);
    return 0;
}
