/*
 * An emulated link between two network namespaces that delays and drops packets, for kernels
 * without netem. Lines on its standard input are faults of TCP connections (tcp_faults.h).
 *
 *     relay [-d DELAY_US] [-l LOSS_PPM] [-s SEED] [-q PACKETS] [-r BYTES_PER_S] \
 *         [-x SPARED_PORT] SPACE DEVICE SPACE DEVICE
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
 * second namespace, and the number of faults that have met a connection. Packets that a fault
 * stops are not counted:
 *
 *     forwarded 10 12 lost 0 1 overflowed 0 0 faults 0
 */
#define _GNU_SOURCE

#include "tcp_faults.h"

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
typedef struct link {
    uint64_t delay_ns;
    uint64_t loss_ppm;
    uint64_t seed;
    uint64_t bytes_per_s; /* 0: unlimited */
    size_t capacity;      /* of each queue, in packets */
} link_t;

/* One direction: a ring of packets, in the order of arrival and departure. */
typedef struct direction {
    const link_t *link;
    unsigned index;  /* 0 or 1 */
    int from, to;    /* TUN devices */
    packet_t *ring;
    size_t first, count;
    uint64_t busy_until_ns; /* end of the last byte, with a rate */
    uint64_t next_number;   /* number of the next packet */
    uint64_t forwarded, lost, overflowed;
    fault_table_t *faults; /* of both directions */
} direction_t;

static void fail(const char *action)
{
    fprintf(stderr, "relay: %s: %s\n", action, strerror(errno));
    exit(1);
}

static int require(int result, const char *action)
{
    if (result < 0) {
        fail(action);
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
static uint64_t mix_bits(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Returns true if a packet is dropped. The result is the same in every run. */
static int is_lost(const link_t *link, unsigned direction, uint64_t number)
{
    uint64_t draw = mix_bits(mix_bits(link->seed) + 2 * number + direction);
    return draw % PER_MILLION < link->loss_ppm;
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
static uint64_t due_ns(direction_t *dir, uint64_t now, size_t len)
{
    const link_t *link = dir->link;
    if (link->bytes_per_s == 0) {
        return now + link->delay_ns;
    }
    if (dir->busy_until_ns < now) {
        dir->busy_until_ns = now;
    }
    dir->busy_until_ns += (uint64_t)len * NS_PER_S / link->bytes_per_s;
    return dir->busy_until_ns + link->delay_ns;
}

/* Resets the sender of a segment. A device that is down takes no packet. */
static void reset_sender(int device, const segment_t *segment)
{
    unsigned char reset[60];
    size_t len = make_reset(segment, reset);
    if (write(device, reset, len) != (ssize_t)len) {
        fprintf(stderr, "relay: a reset is lost\n");
    }
}

/* Handles the faults in the lines of the input. Returns 0 at its end. */
static int read_faults(direction_t *directions)
{
    static char text[4096];
    static size_t len;
    char *line = text, *end;
    ssize_t got = read(STDIN_FILENO, text + len, sizeof(text) - 1 - len);
    if (got <= 0) {
        return 0;
    }
    len += (size_t)got;
    text[len] = '\0';
    for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        unsigned sides;
        connection_t *reset = add_fault(directions[0].faults, line, now_ns(), &sides);
        for (unsigned side = 0; side < 2 && reset != NULL; side++) {
            if ((sides >> side & 1) != 0) {
                /* Only the device of the sender's namespace takes the packet in. */
                reset_sender(directions[side ^ reset->first_direction].from, &reset->last[side]);
            }
        }
    }
    len -= (size_t)(line - text);
    memmove(text, line, len);
    return 1;
}

/* Reads a packet from the device; returns 0 if there is none. */
static int read_packet(direction_t *dir)
{
    packet_t dropped;
    int is_full = dir->count == dir->link->capacity;
    packet_t *packet =
        is_full ? &dropped : &dir->ring[(dir->first + dir->count) % dir->link->capacity];
    ssize_t len = read(dir->from, packet->bytes, MTU_MAX);
    if (len <= 0) {
        if (len == 0 || errno == EAGAIN || errno == EINTR) {
            return 0;
        }
        fail("reading from a TUN device");
    }
    if (is_multicast(packet->bytes, (size_t)len)) {
        return 1;
    }
    segment_t segment;
    enum verdict verdict = judge_packet(dir->faults, packet->bytes, (size_t)len, dir->index, now_ns(), &segment);
    if (verdict == RESET) {
        reset_sender(dir->from, &segment);
    }
    if (verdict != FORWARD) {
        return 1;
    }
    uint64_t number = dir->next_number++;
    if (is_lost(dir->link, dir->index, number)) {
        dir->lost++;
    } else if (is_full) {
        dir->overflowed++;
    } else {
        packet->len = (size_t)len;
        packet->due_ns = due_ns(dir, now_ns(), packet->len);
        dir->count++;
    }
    return 1;
}

static void read_packets(direction_t *dir)
{
    for (int i = 0; i < BATCH && read_packet(dir); i++) {
    }
}

/* Sends the packets that are due. If the other device refuses a packet (it may be down), the
 * packet counts as an overflow. */
static void send_due_packets(direction_t *dir)
{
    uint64_t now = now_ns();
    while (dir->count > 0 && dir->ring[dir->first].due_ns <= now) {
        const packet_t *packet = &dir->ring[dir->first];
        if (write(dir->to, packet->bytes, packet->len) == (ssize_t)packet->len) {
            dir->forwarded++;
        } else {
            dir->overflowed++;
        }
        dir->first = (dir->first + 1) % dir->link->capacity;
        dir->count--;
    }
}

/* Sets the timer to the next departure in either direction. */
static void set_timer(int timer, const direction_t *directions)
{
    struct itimerspec at = {{0, 0}, {0, 0}};
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        const direction_t *dir = &directions[i];
        if (dir->count > 0 && dir->ring[dir->first].due_ns < next) {
            next = dir->ring[dir->first].due_ns;
        }
    }
    if (next != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(next / NS_PER_S);
        at.it_value.tv_nsec = (long)(next % NS_PER_S);
    }
    require(timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL), "timerfd_settime");
}

enum source { FROM_FIRST, FROM_SECOND, TIMER, INPUT };

static void watch_fd(int epoll, int fd, enum source source)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = source}};
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/* Relays until standard input is closed. */
static void run_relay(direction_t *directions)
{
    int epoll = require(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    int timer = require(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd_create");
    watch_fd(epoll, directions[0].from, FROM_FIRST);
    watch_fd(epoll, directions[1].from, FROM_SECOND);
    watch_fd(epoll, timer, TIMER);
    watch_fd(epoll, STDIN_FILENO, INPUT);
    for (;;) {
        struct epoll_event events[4];
        int count = epoll_wait(epoll, events, 4, -1);
        if (count < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        for (int i = 0; i < count; i++) {
            switch (events[i].data.u32) {
            case FROM_FIRST:
            case FROM_SECOND:
                read_packets(&directions[events[i].data.u32]);
                break;
            case TIMER: /* Setting it again makes it unreadable. */
                break;
            default:
                if (!read_faults(directions)) {
                    return;
                }
            }
        }
        send_due_packets(&directions[0]);
        send_due_packets(&directions[1]);
        set_timer(timer, directions);
    }
}

/* Opens a device of another namespace; this process stays in its own namespace. */
static int open_device(const char *space, const char *device)
{
    char path[256];
    struct ifreq request;
    int home = require(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "/proc/self/ns/net");
    snprintf(path, sizeof(path), "/run/netns/%s", space);
    int namespace_fd = require(open(path, O_RDONLY | O_CLOEXEC), path);
    require(setns(namespace_fd, CLONE_NEWNET), path);
    /* The file belongs to the namespace in which it is opened. */
    int tun = require(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
    memset(&request, 0, sizeof(request));
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", device);
    require(ioctl(tun, TUNSETIFF, &request), device);
    require(setns(home, CLONE_NEWNET), "the way back to this name space");
    close(namespace_fd);
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

static uint64_t parse_number(const char *text)
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

static link_t parse_options(int argc, char **argv, fault_table_t *faults)
{
    link_t link = {.capacity = 2048};
    int option;
    while ((option = getopt(argc, argv, "d:l:s:q:r:x:")) != -1) {
        switch (option) {
        case 'd':
            link.delay_ns = parse_number(optarg) * 1000;
            break;
        case 'l':
            link.loss_ppm = parse_number(optarg);
            break;
        case 's':
            link.seed = parse_number(optarg);
            break;
        case 'q':
            link.capacity = parse_number(optarg);
            break;
        case 'r':
            link.bytes_per_s = parse_number(optarg);
            break;
        case 'x':
            faults->spared_port = (uint16_t)parse_number(optarg);
            break;
        default:
            exit(2);
        }
    }
    if (argc - optind != 4 || link.capacity == 0) {
        fprintf(stderr, "usage: relay [-d DELAY_US] [-l LOSS_PPM] [-s SEED] [-q PACKETS] [-r BYTES_PER_S] "
                        "[-x SPARED_PORT] SPACE DEVICE SPACE DEVICE\n");
        exit(2);
    }
    return link;
}

int main(int argc, char **argv)
{
    static fault_table_t faults;
    link_t link = parse_options(argc, argv, &faults);
    direction_t both[2] = {{.link = &link, .index = 0, .faults = &faults}, {.link = &link, .index = 1, .faults = &faults}};
    die_with_parent();
    both[0].from = both[1].to = open_device(argv[optind], argv[optind + 1]);
    both[1].from = both[0].to = open_device(argv[optind + 2], argv[optind + 3]);
    for (int i = 0; i < 2; i++) {
        both[i].ring = calloc(link.capacity, sizeof(packet_t));
        if (both[i].ring == NULL) {
            fail("the queue");
        }
    }
    run_relay(both);
    printf("forwarded %" PRIu64 " %" PRIu64 " lost %" PRIu64 " %" PRIu64 " overflowed %" PRIu64 " %" PRIu64
           " faults %" PRIu64 "\n",
           both[0].forwarded, both[1].forwarded, both[0].lost, both[1].lost, both[0].overflowed, both[1].overflowed,
           faults.faults);
    free(both[0].ring);
    free(both[1].ring);
    return 0;
}
