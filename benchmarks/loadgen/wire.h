/* The few Kafka messages the load client and the floor speak: Produce v11 and Fetch v12, both flexible, topics by name.
 * Apache Kafka 4.3 and Tidelog both take them. Everything is big endian; lengths of compact forms are uvarint(n + 1). */
#ifndef TIDELOG_WIRE_H
#define TIDELOG_WIRE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "crc32c.h"

enum {
    API_PRODUCE = 0,
    API_FETCH = 1,
    API_VERSIONS = 18,
    PRODUCE_VERSION = 11,
    FETCH_VERSION = 12,
    BATCH_HEADER = 61,  /* a record batch up to its first record */
    LOG_OVERHEAD = 12,  /* base offset and batch length */
    CRC_FROM = 21,      /* the CRC covers the batch from its attributes on */
};

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void put_be(uint8_t *at, uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
}

static inline uint64_t get_be(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | at[i];
    return value;
}

/* Output into a buffer that is large enough; `p` is where the next byte goes. */
typedef struct {
    uint8_t *start, *p;
} Writer;

static inline void w_int(Writer *w, uint64_t value, int bytes) {
    put_be(w->p, value, bytes);
    w->p += bytes;
}

static inline void w_uvarint(Writer *w, uint64_t value) {
    for (; value >= 128; value >>= 7) *w->p++ = (uint8_t)(value | 128);
    *w->p++ = (uint8_t)value;
}

static inline void w_varint(Writer *w, int64_t value) { w_uvarint(w, (uint64_t)(value << 1) ^ (uint64_t)(value >> 63)); }

static inline void w_bytes(Writer *w, const void *data, size_t length) {
    memcpy(w->p, data, length);
    w->p += length;
}

static inline void w_compact_string(Writer *w, const char *text) {
    w_uvarint(w, strlen(text) + 1);
    w_bytes(w, text, strlen(text));
}

/* Length prefix, left open, and request header version 2. The correlation id is at byte 8. */
static inline void w_request_header(Writer *w, int api, int version) {
    w_int(w, 0, 4);
    w_int(w, (uint64_t)api, 2);
    w_int(w, (uint64_t)version, 2);
    w_int(w, 0, 4);
    w_int(w, 7, 2);
    w_bytes(w, "loadgen", 7);
    w_uvarint(w, 0);
}

static inline void w_close_frame(Writer *w) { put_be(w->start, (uint64_t)(w->p - w->start - 4), 4); }

static inline void set_correlation_id(uint8_t *frame, uint32_t id) { put_be(frame + 8, id, 4); }

/* Read side: the caller has a complete frame, so these do not check bounds. */
static inline uint64_t r_uvarint(const uint8_t **p) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*p)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
}

static inline void r_skip_compact(const uint8_t **p) {
    uint64_t length = r_uvarint(p);
    if (length > 0) *p += length - 1;
}

/* A record batch of `records` values of `value_bytes`, uncompressed, no keys. Returns the first value's position. */
static inline size_t write_batch(Writer *w, int records, int value_bytes) {
    uint8_t *batch = w->p;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t now_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
    w->p += BATCH_HEADER;
    size_t first_value = 0;
    uint64_t seed = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < records; i++) {
        uint8_t head[32];
        Writer body = {head, head};
        w_int(&body, 0, 1);
        w_varint(&body, 0);
        w_varint(&body, i);
        w_varint(&body, -1);
        w_varint(&body, value_bytes);
        w_varint(w, (body.p - body.start) + value_bytes + 1);
        w_bytes(w, head, (size_t)(body.p - body.start));
        if (i == 0) first_value = (size_t)(w->p - batch);
        for (int j = 0; j < value_bytes; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            *w->p++ = (uint8_t)(seed >> 56);
        }
        *w->p++ = 0;
    }
    put_be(batch, 0, 8);
    put_be(batch + 8, (uint64_t)(w->p - batch - LOG_OVERHEAD), 4);
    put_be(batch + 12, (uint64_t)-1, 4);
    batch[16] = 2;
    put_be(batch + 21, 0, 2);
    put_be(batch + 23, (uint64_t)(records - 1), 4);
    put_be(batch + 27, now_ms, 8);
    put_be(batch + 35, now_ms, 8);
    put_be(batch + 43, (uint64_t)-1, 8);
    put_be(batch + 51, (uint64_t)-1, 2);
    put_be(batch + 53, (uint64_t)-1, 4);
    put_be(batch + 57, (uint64_t)records, 4);
    put_be(batch + 17, crc32c(batch + CRC_FROM, (size_t)(w->p - batch) - CRC_FROM), 4);
    return first_value;
}

/* One Produce request for one partition, ready to send except for the correlation id. */
typedef struct {
    uint8_t *data;
    size_t length;
    size_t batch;       /* where the record batch begins */
    size_t batch_bytes;
    size_t first_value; /* where the first record's value begins */
} Frame;

static inline Frame produce_frame(const char *topic, int partition, int acks, int records, int value_bytes) {
    size_t batch_limit = BATCH_HEADER + (size_t)records * ((size_t)value_bytes + 32);
    uint8_t *scratch = malloc(batch_limit), *data = malloc(batch_limit + 512);
    if (!scratch || !data) die("malloc");
    Writer batch = {scratch, scratch}, w = {data, data};
    size_t first_value = write_batch(&batch, records, value_bytes);
    size_t batch_bytes = (size_t)(batch.p - batch.start);
    w_request_header(&w, API_PRODUCE, PRODUCE_VERSION);
    w_uvarint(&w, 0); /* no transactional id */
    w_int(&w, (uint64_t)acks, 2);
    w_int(&w, 30000, 4);
    w_uvarint(&w, 2);
    w_compact_string(&w, topic);
    w_uvarint(&w, 2);
    w_int(&w, (uint64_t)partition, 4);
    w_uvarint(&w, batch_bytes + 1);
    Frame frame = {data, 0, (size_t)(w.p - data), batch_bytes, 0};
    frame.first_value = frame.batch + first_value;
    w_bytes(&w, scratch, batch_bytes);
    w_uvarint(&w, 0);
    w_uvarint(&w, 0);
    w_uvarint(&w, 0);
    w_close_frame(&w);
    frame.length = (size_t)(w.p - data);
    free(scratch);
    return frame;
}

/* Stamp the first value with a time and make the CRC right again. */
static inline void stamp_frame(uint8_t *copy, const Frame *frame, uint64_t time_ns) {
    put_be(copy + frame->first_value, time_ns, 8);
    uint8_t *batch = copy + frame->batch;
    put_be(batch + 17, crc32c(batch + CRC_FROM, frame->batch_bytes - CRC_FROM), 4);
}

/* The error code of a Produce response (a complete frame after its length prefix); the base offset goes to *base. */
static inline int produce_error(const uint8_t *p, uint64_t *base) {
    p += 5; /* correlation id, tags */
    r_uvarint(&p);
    r_skip_compact(&p);
    r_uvarint(&p);
    p += 4;
    int error = (int16_t)get_be(p, 2);
    *base = get_be(p + 2, 8);
    return error;
}

typedef struct {
    const char *topic;
    int partition, max_wait_ms, min_bytes, max_bytes;
    uint64_t offset;
} FetchPosition;

/* Fetch v12 outside a session; returns the length of the frame in `data` (512 bytes are enough). */
static inline size_t fetch_frame(uint8_t *data, const FetchPosition *at) {
    Writer w = {data, data};
    w_request_header(&w, API_FETCH, FETCH_VERSION);
    w_int(&w, (uint64_t)-1, 4);
    w_int(&w, (uint64_t)at->max_wait_ms, 4);
    w_int(&w, (uint64_t)at->min_bytes, 4);
    w_int(&w, (uint64_t)at->max_bytes, 4);
    w_int(&w, 0, 1);
    w_int(&w, 0, 4);
    w_int(&w, (uint64_t)-1, 4);
    w_uvarint(&w, 2);
    w_compact_string(&w, at->topic);
    w_uvarint(&w, 2);
    w_int(&w, (uint64_t)at->partition, 4);
    w_int(&w, (uint64_t)-1, 4);
    w_int(&w, at->offset, 8);
    w_int(&w, (uint64_t)-1, 4);
    w_int(&w, (uint64_t)-1, 8);
    w_int(&w, (uint64_t)at->max_bytes, 4);
    w_uvarint(&w, 0);
    w_uvarint(&w, 0);
    w_uvarint(&w, 1);
    w_uvarint(&w, 1);
    w_uvarint(&w, 0);
    w_close_frame(&w);
    return (size_t)(w.p - w.start);
}

/* Find the records of a one-partition Fetch response; returns the error code. */
static inline int fetch_records(const uint8_t *p, const uint8_t **records, size_t *length) {
    *length = 0;
    *records = p;
    p += 5 + 4;
    int error = (int16_t)get_be(p, 2);
    p += 2 + 4;
    if (error != 0 || r_uvarint(&p) < 2) return error;
    r_skip_compact(&p);
    r_uvarint(&p);
    error = (int16_t)get_be(p + 4, 2);
    p += 4 + 2 + 8 + 8 + 8;
    for (uint64_t aborted = r_uvarint(&p); aborted > 1; aborted--) {
        p += 16;
        r_uvarint(&p);
    }
    p += 4;
    uint64_t size = r_uvarint(&p);
    *records = p;
    *length = size > 0 ? size - 1 : 0;
    return error;
}
#endif
