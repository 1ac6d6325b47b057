/* The load client of the benchmarks: light, so that the broker and not the client is measured.
 *
 *   loadgen produce  closed loop: `window` requests in flight on one connection, latency from send to answer
 *   loadgen fetch    closed loop: one connection reads a partition from its start
 *   loadgen paced    open loop: producers send at intended times without waiting, and latency counts from the
 *                    intended time (no coordinated omission); consumers tail the partitions and measure end to end
 *
 * Frames are built once. A closed-loop request only gets a new correlation id; a paced request also gets its intended
 * time in the first value, and a new CRC. Prints one JSON object. Single thread, non-blocking sockets, epoll. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "histogram.h"
#include "wire.h"

enum { OUT_TARGET = 256 * 1024, SOCKET_BUFFER = 4 << 20, PACED_IN_FLIGHT = 5, DRAIN_S = 10 };

static struct {
    const char *host, *port, *topic;
    int partitions, value_bytes, records, window, acks, max_bytes, max_wait_ms, min_bytes, producers, consumers;
    uint64_t requests, total_bytes;
    double rate, seconds;
} options = {
    .host = "127.0.0.1", .port = "9092", .topic = "load", .partitions = 1, .value_bytes = 1000, .records = 1,
    .window = 1, .acks = 1, .max_bytes = 1 << 20, .max_wait_ms = 500, .min_bytes = 1, .producers = 1, .consumers = 0,
    .requests = 1000, .total_bytes = 1 << 30, .rate = 1000, .seconds = 5,
};

static void parse_options(int count, char **words) {
    const struct {
        const char *name;
        const char **text;
        int *number;
        uint64_t *wide;
        double *real;
    } known[] = {
        {"--host", &options.host, 0, 0, 0},
        {"--port", &options.port, 0, 0, 0},
        {"--topic", &options.topic, 0, 0, 0},
        {"--partitions", 0, &options.partitions, 0, 0},
        {"--value-bytes", 0, &options.value_bytes, 0, 0},
        {"--records", 0, &options.records, 0, 0},
        {"--window", 0, &options.window, 0, 0},
        {"--acks", 0, &options.acks, 0, 0},
        {"--max-bytes", 0, &options.max_bytes, 0, 0},
        {"--max-wait-ms", 0, &options.max_wait_ms, 0, 0},
        {"--min-bytes", 0, &options.min_bytes, 0, 0},
        {"--producers", 0, &options.producers, 0, 0},
        {"--consumers", 0, &options.consumers, 0, 0},
        {"--requests", 0, 0, &options.requests, 0},
        {"--total-bytes", 0, 0, &options.total_bytes, 0},
        {"--rate", 0, 0, 0, &options.rate},
        {"--seconds", 0, 0, 0, &options.seconds},
    };
    for (int i = 0; i < count; i += 2) {
        size_t k = 0, all = sizeof known / sizeof *known;
        while (k < all && strcmp(known[k].name, words[i]) != 0) k++;
        if (k == all || i + 1 == count) {
            fprintf(stderr, "loadgen: %s is not an option, or has no value\n", words[i]);
            exit(2);
        }
        if (known[k].text) *known[k].text = words[i + 1];
        if (known[k].number) *known[k].number = atoi(words[i + 1]);
        if (known[k].wide) *known[k].wide = strtoull(words[i + 1], 0, 10);
        if (known[k].real) *known[k].real = atof(words[i + 1]);
    }
}

typedef struct {
    int fd;
    uint8_t *out, *in;
    size_t out_from, out_to, out_room;
    size_t in_from, in_to, in_room;
} Connection;

static void connection_open(Connection *c) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(options.host, options.port, &hints, &found) != 0) die("loadgen: address");
    c->fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (c->fd < 0) die("socket");
    int on = 1, size = SOCKET_BUFFER;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (connect(c->fd, found->ai_addr, found->ai_addrlen) < 0) die("loadgen: connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    freeaddrinfo(found);
}

static uint8_t *out_reserve(Connection *c, size_t length) {
    if (c->out_from == c->out_to) c->out_from = c->out_to = 0;
    if (c->out_to + length > c->out_room) {
        memmove(c->out, c->out + c->out_from, c->out_to - c->out_from);
        c->out_to -= c->out_from;
        c->out_from = 0;
        if (c->out_to + length > c->out_room) {
            c->out_room = 2 * (c->out_to + length);
            if (!(c->out = realloc(c->out, c->out_room))) die("realloc");
        }
    }
    uint8_t *at = c->out + c->out_to;
    c->out_to += length;
    return at;
}

static void out_flush(Connection *c) {
    while (c->out_from < c->out_to) {
        ssize_t sent = send(c->fd, c->out + c->out_from, c->out_to - c->out_from, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) return;
            die("loadgen: send");
        }
        c->out_from += (size_t)sent;
    }
}

/* Receive once; false when nothing is there. */
static int in_receive(Connection *c) {
    if (c->in_from == c->in_to) c->in_from = c->in_to = 0;
    if (c->in_room - c->in_to < 64 * 1024) {
        memmove(c->in, c->in + c->in_from, c->in_to - c->in_from);
        c->in_to -= c->in_from;
        c->in_from = 0;
        if (c->in_room - c->in_to < 64 * 1024) {
            c->in_room = c->in_room ? 2 * c->in_room : 1 << 20;
            if (!(c->in = realloc(c->in, c->in_room))) die("realloc");
        }
    }
    ssize_t got = recv(c->fd, c->in + c->in_to, c->in_room - c->in_to, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got < 0) die("loadgen: recv");
    if (got == 0) {
        fprintf(stderr, "loadgen: the broker closed the connection\n");
        exit(1);
    }
    c->in_to += (size_t)got;
    return 1;
}

/* The next complete response after its length prefix, or 0. */
static const uint8_t *in_frame(Connection *c) {
    size_t have = c->in_to - c->in_from;
    if (have < 4) return 0;
    size_t length = get_be(c->in + c->in_from, 4);
    if (have < 4 + length) return 0;
    const uint8_t *frame = c->in + c->in_from + 4;
    c->in_from += 4 + length;
    return frame;
}

static void wait_for(Connection *c) {
    struct pollfd one = {c->fd, (short)(POLLIN | (c->out_from < c->out_to ? POLLOUT : 0)), 0};
    if (poll(&one, 1, 30000) == 0) {
        fprintf(stderr, "loadgen: no answer for 30 s\n");
        exit(1);
    }
}

static void fail_on(int error) {
    if (error == 0) return;
    fprintf(stderr, "loadgen: the broker answered error code %d\n", error);
    exit(1);
}

static Frame *frames_for_partitions(void) {
    Frame *frames = calloc((size_t)options.partitions, sizeof *frames);
    if (!frames) die("calloc");
    for (int i = 0; i < options.partitions; i++)
        frames[i] = produce_frame(options.topic, i, options.acks, options.records, options.value_bytes);
    return frames;
}

static void print_client_cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("\"client_user_s\": %.3f, \"client_system_s\": %.3f", used.ru_utime.tv_sec + used.ru_utime.tv_usec / 1e6,
           used.ru_stime.tv_sec + used.ru_stime.tv_usec / 1e6);
}

static void run_produce(void) {
    Frame *frames = frames_for_partitions();
    uint64_t *sent_at = calloc((size_t)options.window, sizeof *sent_at), sent = 0, answered = 0, base;
    Histogram *latency = calloc(1, sizeof *latency);
    Connection c = {0};
    if (!sent_at || !latency) die("calloc");
    connection_open(&c);
    uint64_t begin = now_ns();
    while (answered < options.requests) {
        while (sent < options.requests && sent - answered < (uint64_t)options.window &&
               c.out_to - c.out_from < OUT_TARGET) {
            const Frame *frame = &frames[sent % (uint64_t)options.partitions];
            uint8_t *copy = out_reserve(&c, frame->length);
            memcpy(copy, frame->data, frame->length);
            set_correlation_id(copy, (uint32_t)sent);
            sent_at[sent++ % (uint64_t)options.window] = now_ns();
        }
        out_flush(&c);
        if (!in_receive(&c)) {
            wait_for(&c);
            continue;
        }
        uint64_t now = now_ns();
        for (const uint8_t *p; (p = in_frame(&c)); answered++) {
            fail_on(produce_error(p, &base));
            record(latency, now - sent_at[answered % (uint64_t)options.window]);
        }
    }
    double seconds = (double)(now_ns() - begin) / 1e9;
    uint64_t records = answered * (uint64_t)options.records;
    printf("{\"seconds\": %.6f, \"requests\": %llu, \"records\": %llu, \"payload_bytes\": %llu, \"batch_bytes\": %zu, ",
           seconds, (unsigned long long)answered, (unsigned long long)records,
           (unsigned long long)records * (unsigned long long)options.value_bytes, frames[0].batch_bytes);
    print_client_cpu();
    printf(", ");
    print_histogram("latency", latency);
    printf("}\n");
}

/* The offset after the last complete batch of a fetch. Counts the records; with `stamped` it also records the time since the
 * time in the first value of each batch. */
static uint64_t walk_batches(const uint8_t *p, size_t length, uint64_t next, uint64_t *records, Histogram *stamped) {
    uint64_t now = stamped ? now_ns() : 0;
    while (length >= BATCH_HEADER) {
        size_t size = LOG_OVERHEAD + get_be(p + 8, 4);
        if (size > length) break;
        if (get_be(p, 8) >= next) {
            *records += get_be(p + 57, 4);
            if (stamped) {
                const uint8_t *value = p + BATCH_HEADER;
                r_uvarint(&value); /* record length */
                value += 2;        /* attributes, timestamp delta 0 */
                value += 2;        /* offset delta 0, no key */
                r_uvarint(&value); /* value length */
                record(stamped, now - get_be(value, 8));
            }
        }
        next = get_be(p, 8) + get_be(p + 23, 4) + 1;
        p += size;
        length -= size;
    }
    return next;
}

static void run_fetch(void) {
    FetchPosition at = {options.topic, 0, options.max_wait_ms, options.min_bytes, options.max_bytes, 0};
    Histogram *latency = calloc(1, sizeof *latency);
    Connection c = {0};
    uint64_t bytes = 0, records = 0, requests = 0;
    if (!latency) die("calloc");
    connection_open(&c);
    uint64_t begin = now_ns();
    while (bytes < options.total_bytes) {
        uint8_t request[512];
        size_t length = fetch_frame(request, &at);
        memcpy(out_reserve(&c, length), request, length);
        out_flush(&c);
        uint64_t sent = now_ns();
        const uint8_t *p, *found;
        while (!(p = in_frame(&c)))
            if (!in_receive(&c)) wait_for(&c);
        record(latency, now_ns() - sent);
        size_t size;
        fail_on(fetch_records(p, &found, &size));
        bytes += size;
        requests++;
        at.offset = walk_batches(found, size, at.offset, &records, 0);
        if (size == 0) {
            fprintf(stderr, "loadgen: the partition ends at offset %llu\n", (unsigned long long)at.offset);
            exit(1);
        }
    }
    printf("{\"seconds\": %.6f, \"requests\": %llu, \"records\": %llu, \"record_bytes\": %llu, \"payload_bytes\": %llu, ",
           (double)(now_ns() - begin) / 1e9, (unsigned long long)requests, (unsigned long long)records,
           (unsigned long long)bytes, (unsigned long long)records * (unsigned long long)options.value_bytes);
    print_client_cpu();
    printf(", ");
    print_histogram("latency", latency);
    printf("}\n");
}

/* ---- paced ---- */

typedef struct {
    Connection c;
    int is_producer;
    /* producer: indices of the requests whose time has come; [done, sent) are in flight, [sent, due) wait */
    uint64_t done, sent, due;
    Frame frame;
    /* consumer */
    FetchPosition at;
} Peer;

static struct {
    uint64_t begin, completed, consumed;
    Histogram latency, end_to_end;
} paced;

/* When the k-th request of one producer should go out: producers take turns on one common schedule. */
static uint64_t intended_ns(uint64_t k, int index) {
    double global = (double)(k * (uint64_t)options.producers + (uint64_t)index);
    return paced.begin + (uint64_t)(global * 1e9 / options.rate);
}

static void producer_turn(Peer *peer, int index, uint64_t now) {
    uint64_t end = paced.begin + (uint64_t)(options.seconds * 1e9);
    for (uint64_t when; (when = intended_ns(peer->due, index)) <= now && when < end;) peer->due++;
    while (peer->sent < peer->due && peer->sent - peer->done < PACED_IN_FLIGHT) {
        uint8_t *copy = out_reserve(&peer->c, peer->frame.length);
        memcpy(copy, peer->frame.data, peer->frame.length);
        set_correlation_id(copy, (uint32_t)peer->sent);
        stamp_frame(copy, &peer->frame, intended_ns(peer->sent, index));
        peer->sent++;
    }
    out_flush(&peer->c);
}

static void consumer_ask(Peer *peer) {
    uint8_t request[512];
    size_t length = fetch_frame(request, &peer->at);
    memcpy(out_reserve(&peer->c, length), request, length);
    out_flush(&peer->c);
}

static void peer_readable(Peer *peer, int index) {
    while (in_receive(&peer->c)) {
        uint64_t now = now_ns(), base;
        for (const uint8_t *p, *found; (p = in_frame(&peer->c));) {
            if (peer->is_producer) {
                fail_on(produce_error(p, &base));
                record(&paced.latency, now - intended_ns(peer->done++, index));
                paced.completed++;
                continue;
            }
            size_t size;
            fail_on(fetch_records(p, &found, &size));
            peer->at.offset = walk_batches(found, size, peer->at.offset, &paced.consumed, &paced.end_to_end);
            consumer_ask(peer);
        }
    }
}

static int is_drained(const Peer *peers) {
    for (int i = 0; i < options.producers; i++)
        if (peers[i].done < peers[i].due) return 0;
    return 1;
}

static void paced_loop(Peer *peers, int poller) {
    uint64_t end = paced.begin + (uint64_t)(options.seconds * 1e9), give_up = end + DRAIN_S * 1000000000ull;
    struct epoll_event events[256];
    for (uint64_t now; (now = now_ns()) < give_up;) {
        /* Also after the end: requests that were due while this process waited for the CPU are sent late, not left out. */
        for (int i = 0; i < options.producers; i++) producer_turn(&peers[i], i, now);
        if (now >= end && is_drained(peers)) break;
        struct timespec pause = {0, 100000};
        int ready = epoll_pwait2(poller, events, 256, &pause, 0);
        for (int i = 0; i < ready; i++) {
            int index = (int)events[i].data.u32;
            if (events[i].events & (EPOLLIN | EPOLLHUP)) peer_readable(&peers[index], index);
            out_flush(&peers[index].c);
        }
    }
}

static void run_paced(void) {
    int count = options.producers + options.consumers, poller = epoll_create1(0);
    Peer *peers = calloc((size_t)count, sizeof *peers);
    if (!peers || poller < 0) die("loadgen: set-up");
    for (int i = 0; i < count; i++) {
        Peer *peer = &peers[i];
        int partition = (i < options.producers ? i : i - options.producers) % options.partitions;
        peer->is_producer = i < options.producers;
        connection_open(&peer->c);
        struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, peer->c.fd, &wanted) < 0) die("epoll_ctl");
        if (peer->is_producer)
            peer->frame = produce_frame(options.topic, partition, options.acks, options.records, options.value_bytes);
        else
            peer->at = (FetchPosition){options.topic, partition, options.max_wait_ms, options.min_bytes,
                                       options.max_bytes, 0};
    }
    for (int i = options.producers; i < count; i++) consumer_ask(&peers[i]);
    paced.begin = now_ns() + 1000000;
    paced_loop(peers, poller);
    double seconds = (double)(now_ns() - paced.begin) / 1e9;
    uint64_t due = 0;
    for (int i = 0; i < options.producers; i++) due += peers[i].due;
    printf("{\"seconds\": %.6f, \"intended\": %llu, \"completed\": %llu, \"consumed_records\": %llu, ", seconds,
           (unsigned long long)due, (unsigned long long)paced.completed, (unsigned long long)paced.consumed);
    print_client_cpu();
    printf(", ");
    print_histogram("latency", &paced.latency);
    printf(", ");
    print_histogram("end_to_end", &paced.end_to_end);
    printf("}\n");
}

int main(int count, char **words) {
    crc32c_init();
    const char *command = count > 1 ? words[1] : "";
    parse_options(count - 2, words + 2);
    if (strcmp(command, "produce") == 0) run_produce();
    else if (strcmp(command, "fetch") == 0) run_fetch();
    else if (strcmp(command, "paced") == 0) run_paced();
    else {
        fprintf(stderr, "usage: loadgen produce|fetch|paced [--option value ...]\n");
        return 2;
    }
    return 0;
}
