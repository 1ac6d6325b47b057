/* The floor: a server that does only the work that no broker can avoid, with the least CPU time.
 *
 * It speaks just enough Produce v11 and Fetch v12 for loadgen. For a produced batch it does a recv, CRC-32C, base offset,
 * write and an answer; for a fetch one sendfile. It decides nothing, keeps no index and serves one connection at a time. All
 * produced batches must have one size, so that an offset gives the position.
 *
 *   floor PORT DATA_FILE */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

enum { FRAME_LIMIT = 8 << 20 };

static struct {
    int file;
    uint64_t next_offset, size, batch_bytes, batch_records;
} state;

static uint8_t frame[FRAME_LIMIT];

static int receive_exactly(int fd, uint8_t *into, size_t length) {
    while (length > 0) {
        ssize_t got = recv(fd, into, length, 0);
        if (got <= 0) return 0;
        into += got;
        length -= (size_t)got;
    }
    return 1;
}

static void send_exactly(int fd, const uint8_t *data, size_t length, int flags) {
    while (length > 0) {
        ssize_t sent = send(fd, data, length, flags | MSG_NOSIGNAL);
        if (sent <= 0) return;
        data += sent;
        length -= (size_t)sent;
    }
}

static const uint8_t *skip_request_header(const uint8_t *p) {
    p += 8;
    p += 2 + get_be(p, 2);
    r_uvarint(&p);
    return p;
}

static void answer_produce(int fd) {
    const uint8_t *p = skip_request_header(frame);
    r_skip_compact(&p);
    p += 6;
    r_uvarint(&p);
    const uint8_t *topic = p;
    r_skip_compact(&p);
    size_t topic_bytes = (size_t)(p - topic);
    r_uvarint(&p);
    uint64_t partition = get_be(p, 4);
    p += 4;
    size_t length = r_uvarint(&p) - 1;
    uint8_t *batch = (uint8_t *)p;
    int error = crc32c(batch + CRC_FROM, length - CRC_FROM) == get_be(batch + 17, 4) ? 0 : 2;
    uint64_t base = state.next_offset;
    put_be(batch, base, 8);
    if (write(state.file, batch, length) != (ssize_t)length) die("floor: write");
    state.batch_bytes = length;
    state.batch_records = get_be(batch + 57, 4);
    state.next_offset += state.batch_records;
    state.size += length;
    uint8_t answer[512];
    Writer w = {answer, answer};
    w_int(&w, 0, 4);
    w_bytes(&w, frame + 4, 4);
    w_uvarint(&w, 0);
    w_uvarint(&w, 2);
    w_bytes(&w, topic, topic_bytes);
    w_uvarint(&w, 2);
    w_int(&w, partition, 4);
    w_int(&w, (uint64_t)error, 2);
    w_int(&w, base, 8);
    w_int(&w, (uint64_t)-1, 8);
    w_int(&w, 0, 8);
    w_uvarint(&w, 1);
    w_uvarint(&w, 0);
    w_uvarint(&w, 0);
    w_uvarint(&w, 0);
    w_int(&w, 0, 4);
    w_uvarint(&w, 0);
    w_close_frame(&w);
    send_exactly(fd, answer, (size_t)(w.p - w.start), 0);
}

static void answer_fetch(int fd) {
    const uint8_t *p = skip_request_header(frame);
    p += 4 + 4 + 4 + 4 + 1 + 4 + 4;
    r_uvarint(&p);
    const uint8_t *topic = p;
    r_skip_compact(&p);
    size_t topic_bytes = (size_t)(p - topic);
    r_uvarint(&p);
    uint64_t partition = get_be(p, 4), offset = get_be(p + 8, 8), limit = get_be(p + 28, 4);
    off_t position = state.batch_records ? (off_t)(offset / state.batch_records * state.batch_bytes) : 0;
    uint64_t left = (uint64_t)position < state.size ? state.size - (uint64_t)position : 0;
    uint64_t count = left < limit ? left : limit;
    uint8_t answer[512];
    Writer w = {answer, answer};
    w_int(&w, 0, 4);
    w_bytes(&w, frame + 4, 4);
    w_uvarint(&w, 0);
    w_int(&w, 0, 4);
    w_int(&w, 0, 2);
    w_int(&w, 0, 4);
    w_uvarint(&w, 2);
    w_bytes(&w, topic, topic_bytes);
    w_uvarint(&w, 2);
    w_int(&w, partition, 4);
    w_int(&w, 0, 2);
    w_int(&w, state.next_offset, 8);
    w_int(&w, state.next_offset, 8);
    w_int(&w, 0, 8);
    w_uvarint(&w, 0);
    w_int(&w, (uint64_t)-1, 4);
    w_uvarint(&w, count + 1);
    put_be(answer, (uint64_t)(w.p - w.start) + count + 3 - 4, 4);
    send_exactly(fd, answer, (size_t)(w.p - w.start), MSG_MORE);
    while (count > 0) {
        ssize_t sent = sendfile(fd, state.file, &position, count);
        if (sent <= 0) return;
        count -= (uint64_t)sent;
    }
    send_exactly(fd, (const uint8_t *)"\0\0\0", 3, 0);
}

static void serve(int fd) {
    uint8_t prefix[4];
    while (receive_exactly(fd, prefix, 4)) {
        size_t length = get_be(prefix, 4);
        if (length < 8 || length > FRAME_LIMIT || !receive_exactly(fd, frame, length)) return;
        if (get_be(frame, 2) == API_PRODUCE) answer_produce(fd);
        else if (get_be(frame, 2) == API_FETCH) answer_fetch(fd);
        else send_exactly(fd, (const uint8_t *)"\0\0\0\4\0\0\0\1", 8, 0);
    }
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: floor PORT DATA_FILE\n");
        return 2;
    }
    crc32c_init();
    state.file = open(words[2], O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1])),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (state.file < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 16) < 0) die("floor");
    for (;;) {
        int fd = accept(listener, 0, 0);
        if (fd < 0) die("floor: accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        serve(fd);
        close(fd);
    }
}
