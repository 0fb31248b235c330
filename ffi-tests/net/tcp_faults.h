/*
 * Faults of single TCP connections on an emulated link, as routers and firewalls cause them. The
 * relay gives each packet to judge_packet(), and each line of its standard input to
 * add_fault().
 *
 *     reset N       both ends of connection N get a reset, and so does each further packet.
 *     half N SIDE   one end of connection N (0 or 1) gets a reset. All further packets are lost.
 *     forget N      all further packets of connection N are lost.
 *     stall N MS    all packets of connection N are lost for MS milliseconds.
 *
 * Connection N is the one with the place N modulo the number of connections that have carried
 * packets and have no fault. Connections from or to the port `spared_port` are left alone.
 */
#ifndef TCP_FAULTS_H
#define TCP_FAULTS_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_MAX 1024
#define NS_PER_MS UINT64_C(1000000)

enum verdict { FORWARD, DROP, RESET };

enum condition { HEALTHY, REJECTED, FORGOTTEN, ENDED };

/* What the relay reads of a TCP packet. Numbers have the order of this host. */
typedef struct segment {
    size_t address_len; /* 4 or 16 */
    unsigned char from[16], to[16];
    uint16_t from_port, to_port;
    uint32_t sequence, acknowledged;
    unsigned char flags;
} segment_t;

/* A connection. Side 0 has sent the first packet, in the direction `first_direction`. */
typedef struct connection {
    unsigned first_direction;
    segment_t last[2]; /* the last packet of each side */
    int has_last[2];
    enum condition condition;
    uint64_t stalled_until_ns;
} connection_t;

/* The last connections. Connection `made - 1` is the newest; the place of one is its number modulo
 * CONNECTIONS_MAX. */
typedef struct fault_table {
    connection_t connections[CONNECTIONS_MAX];
    uint64_t made;
    uint16_t spared_port;
    uint64_t faults; /* the number of faults that have met a connection */
} fault_table_t;

#define FLAG_FIN 0x01u
#define FLAG_SYN 0x02u
#define FLAG_RST 0x04u
#define FLAG_ACK 0x10u

static uint16_t read_u16(const unsigned char *bytes)
{
    return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static uint32_t read_u32(const unsigned char *bytes)
{
    return (uint32_t)read_u16(bytes) << 16 | read_u16(bytes + 2);
}

static void write_u16(unsigned char *bytes, uint32_t value)
{
    bytes[0] = (unsigned char)(value >> 8);
    bytes[1] = (unsigned char)value;
}

static void write_u32(unsigned char *bytes, uint32_t value)
{
    write_u16(bytes, value >> 16);
    write_u16(bytes + 2, value & 0xffff);
}

/* Reads a packet; returns 0 if it is no TCP packet without IPv6 extensions. */
static int parse_segment(const unsigned char *bytes, size_t len, segment_t *segment)
{
    unsigned version = len > 0 ? bytes[0] >> 4 : 0;
    size_t head = version == 4 ? (size_t)(bytes[0] & 15) * 4 : 40;
    size_t addresses = version == 4 ? 12 : 8;
    const unsigned char *tcp = bytes + head;
    if ((version != 4 && version != 6) || len < head + 20 || bytes[version == 4 ? 9 : 6] != 6) {
        return 0;
    }
    memset(segment, 0, sizeof(*segment));
    segment->address_len = version == 4 ? 4 : 16;
    memcpy(segment->from, bytes + addresses, segment->address_len);
    memcpy(segment->to, bytes + addresses + segment->address_len, segment->address_len);
    segment->from_port = read_u16(tcp);
    segment->to_port = read_u16(tcp + 2);
    segment->sequence = read_u32(tcp + 4);
    segment->acknowledged = read_u32(tcp + 8);
    segment->flags = tcp[13];
    return 1;
}

static uint32_t sum_words(const unsigned char *bytes, size_t len, uint32_t sum)
{
    size_t i;
    for (i = 0; i + 1 < len; i += 2) {
        sum += read_u16(bytes + i);
    }
    return sum;
}

static uint16_t fold_sum(uint32_t sum)
{
    while (sum >> 16 != 0) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return (uint16_t)~sum;
}

/* Writes the packet that resets the sender of a segment; returns its length. */
static size_t make_reset(const segment_t *of, unsigned char *bytes)
{
    size_t head = of->address_len == 4 ? 20 : 40, addresses = of->address_len == 4 ? 12 : 8;
    unsigned char *tcp = bytes + head;
    memset(bytes, 0, head + 20);
    if (of->address_len == 4) {
        bytes[0] = 0x45;
        write_u16(bytes + 2, 40);
        bytes[8] = 64;
        bytes[9] = 6;
    } else {
        bytes[0] = 0x60;
        write_u16(bytes + 4, 20);
        bytes[6] = 6;
        bytes[7] = 64;
    }
    memcpy(bytes + addresses, of->to, of->address_len);
    memcpy(bytes + addresses + of->address_len, of->from, of->address_len);
    if (of->address_len == 4) {
        write_u16(bytes + 10, fold_sum(sum_words(bytes, 20, 0)));
    }
    write_u16(tcp, of->to_port);
    write_u16(tcp + 2, of->from_port);
    if ((of->flags & FLAG_ACK) != 0) {
        write_u32(tcp + 4, of->acknowledged);
        tcp[13] = FLAG_RST;
    } else {
        write_u32(tcp + 8, of->sequence + 1);
        tcp[13] = FLAG_RST | FLAG_ACK;
    }
    tcp[12] = 0x50;
    /* The checksum also covers the addresses, the protocol and the length. */
    write_u16(tcp + 16, fold_sum(sum_words(tcp, 20, sum_words(bytes + addresses, 2 * of->address_len, 6 + 20))));
    return head + 20;
}

static int has_ends(const segment_t *segment, const segment_t *other, int is_reverse)
{
    const unsigned char *from = is_reverse ? other->to : other->from, *to = is_reverse ? other->from : other->to;
    uint16_t from_port = is_reverse ? other->to_port : other->from_port;
    uint16_t to_port = is_reverse ? other->from_port : other->to_port;
    return segment->address_len == other->address_len && segment->from_port == from_port &&
           segment->to_port == to_port && memcmp(segment->from, from, 16) == 0 && memcmp(segment->to, to, 16) == 0;
}

/* Returns the number of the oldest connection that is kept. */
static uint64_t first_kept(const fault_table_t *table)
{
    return table->made < CONNECTIONS_MAX ? 0 : table->made - CONNECTIONS_MAX;
}

/* Returns the connection of a packet, and adds a new one. `side` is set to the sender's side. */
static connection_t *find_connection(fault_table_t *table, const segment_t *segment, int *side)
{
    connection_t *made;
    uint64_t number;
    for (number = table->made; number-- > first_kept(table);) {
        connection_t *known = &table->connections[number % CONNECTIONS_MAX];
        *side = has_ends(segment, &known->last[0], 1);
        if (*side || has_ends(segment, &known->last[0], 0)) {
            /* The ports of an ended connection may be used again. */
            if (known->condition == ENDED && (segment->flags & FLAG_SYN) != 0) {
                break;
            }
            return known;
        }
    }
    made = &table->connections[table->made++ % CONNECTIONS_MAX];
    memset(made, 0, sizeof(*made));
    made->last[0] = *segment;
    *side = 0;
    return made;
}

/* Decides what happens to a packet in a direction. RESET: it is lost, and its sender gets a reset. */
static enum verdict judge_packet(fault_table_t *table, const unsigned char *bytes, size_t len, unsigned direction,
                                 uint64_t now_ns, segment_t *segment)
{
    connection_t *connection;
    int side;
    if (!parse_segment(bytes, len, segment) || segment->from_port == table->spared_port ||
        segment->to_port == table->spared_port) {
        return FORWARD;
    }
    connection = find_connection(table, segment, &side);
    if (!connection->has_last[0]) {
        connection->first_direction = direction;
    }
    connection->last[side] = *segment;
    connection->has_last[side] = 1;
    switch (connection->condition) {
    case REJECTED:
        return (segment->flags & FLAG_RST) != 0 ? DROP : RESET;
    case FORGOTTEN:
        return DROP;
    case HEALTHY:
    case ENDED:
        break;
    }
    if ((segment->flags & (FLAG_RST | FLAG_FIN)) != 0) {
        connection->condition = ENDED;
    }
    return now_ns < connection->stalled_until_ns ? DROP : FORWARD;
}

/* Returns the connection with this place, or NULL if none can get a fault. */
static connection_t *pick_connection(fault_table_t *table, uint64_t place)
{
    connection_t *healthy[CONNECTIONS_MAX];
    uint64_t number;
    size_t count = 0;
    for (number = first_kept(table); number < table->made; number++) {
        connection_t *connection = &table->connections[number % CONNECTIONS_MAX];
        if (connection->condition == HEALTHY && connection->has_last[0] && connection->has_last[1]) {
            healthy[count++] = connection;
        }
    }
    return count == 0 ? NULL : healthy[place % count];
}

/* Adds the fault of an input line. Returns the connection if some ends must get a reset now, and
 * sets `sides` to the sum of 1 for side 0 and 2 for side 1. */
static connection_t *add_fault(fault_table_t *table, const char *line, uint64_t now_ns, unsigned *sides)
{
    char word[16];
    uint64_t place = 0, number = 0;
    connection_t *connection;
    *sides = 3;
    if (sscanf(line, "%15s %" SCNu64 " %" SCNu64, word, &place, &number) < 2) {
        fprintf(stderr, "relay: \"%s\" is no fault\n", line);
        exit(2);
    }
    connection = pick_connection(table, place);
    if (connection == NULL) {
        return NULL;
    }
    table->faults++;
    if (strcmp(word, "reset") == 0) {
        connection->condition = REJECTED;
        return connection;
    }
    if (strcmp(word, "half") == 0) {
        connection->condition = FORGOTTEN;
        *sides = 1u << (number & 1);
        return connection;
    }
    if (strcmp(word, "forget") == 0) {
        connection->condition = FORGOTTEN;
    } else if (strcmp(word, "stall") == 0) {
        connection->stalled_until_ns = now_ns + number * NS_PER_MS;
    } else {
        fprintf(stderr, "relay: \"%s\" is no fault\n", line);
        exit(2);
    }
    return NULL;
}

#endif
