/* C for what Cython cannot express: integers at any address, CRC-32C, prefetch, buffers that are held during a call, reads and
   writes of files. words.py has the same in Python, with docstrings. */
#pragma once
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

typedef struct {
    Py_buffer view; const uint8_t *data; uint8_t *bytes; long long *integers; unsigned long long *words; Py_ssize_t size;
#ifdef __SANITIZE_ADDRESS__
    uint8_t *before;
#endif
} held_t;
/* For make sanitize a copy is held, so that reads past its ends are found: past the ends of a slice are bytes of its buffer. */
#ifdef __SANITIZE_ADDRESS__
static void hold_copy(held_t *held, int flags) {
    size_t size = (size_t)held->view.len;
    held->bytes = (uint8_t *)malloc(size), held->before = flags & PyBUF_WRITABLE ? (uint8_t *)malloc(size) : NULL;
    if (size) memcpy(held->bytes, held->view.buf, size);
    if (held->before && size) memcpy(held->before, held->view.buf, size);
}
static void release_copy(held_t *held) { /* copies back only changed bytes: two may hold the same buffer */
    for (Py_ssize_t at = 0; held->before && at < held->size; at++)
        if (held->bytes[at] != held->before[at]) ((uint8_t *)held->view.buf)[at] = held->bytes[at];
    free(held->before), free(held->bytes);
}
#else
#define hold_copy(held, flags) (void)0
#define release_copy(held) (void)0
#endif
static inline held_t hold_as(PyObject *object, int flags) { /* an empty buffer may have no address */
    static uint64_t none;
    held_t held = {.size = 0};
    if (PyObject_GetBuffer(object, &held.view, flags) == 0) {
        held.bytes = held.view.buf ? (uint8_t *)held.view.buf : (uint8_t *)&none;
        hold_copy(&held, flags);
        held.data = held.bytes, held.integers = (long long *)held.bytes, held.words = (unsigned long long *)held.bytes;
        held.size = held.view.len;
    }
    return held;
}
#define hold(object) hold_as(object, PyBUF_SIMPLE)
#define hold_writable(object) hold_as(object, PyBUF_WRITABLE)
#define release(held) (release_copy(&(held)), PyBuffer_Release(&(held).view))
#define bytes_at(data, position) ((data) + (position))
#define read_at(descriptor, data, at, size, position) pread(descriptor, (data) + (at), (size_t)(size), position)
#define read_in_memory(descriptor, data, at, size, position) \
    preadv2(descriptor, &(struct iovec){(data) + (at), (size_t)(size)}, 1, position, RWF_NOWAIT)
#define write_at(descriptor, data, at, size, position) pwrite(descriptor, (data) + (at), (size_t)(size), position)
#define multiply_high(one, other) (uint64_t)((unsigned __int128)(one) * (other) >> 64)
#define prefetch(data, at) __builtin_prefetch((data) + (at))
#define copy_bytes(to, at, from, start, size) memmove((to) + (at), (from) + (start), (size_t)(size))
#define address_of(bytearray) (uint8_t *)PyByteArray_AS_STRING(bytearray)
#define copy_of(data, at, size) PyBytes_FromStringAndSize((const char *)(data) + (at), (Py_ssize_t)(size))
#define text_of(data, at, size) PyUnicode_DecodeUTF8((const char *)(data) + (at), (Py_ssize_t)(size), NULL)
#define NO_PLACE ((Py_ssize_t)0)
static inline PyObject *new_object(PyObject *cls) { return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0); }
static inline Py_ssize_t place_of(PyObject *slot) { /* byte offset of an attribute in objects of exactly its class */
    if (Py_TYPE(slot) == &PyMemberDescr_Type) return ((PyMemberDescrObject *)slot)->d_member->offset;
    PyErr_SetString(PyExc_TypeError, "not an attribute in __slots__");
    return -1;
}
static inline void put_field(PyObject *object, Py_ssize_t place, PyObject *value) {
    PyObject **field = (PyObject **)((char *)object + place), *old = *field;
    Py_INCREF(value), *field = value, Py_XDECREF(old);
}
static inline PyObject *tuple_as(PyObject *cls, PyObject *values) { /* for a subclass of tuple without fields of its own */
    Py_ssize_t size = PyTuple_GET_SIZE(values);
    PyObject *made = ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, size);
    for (Py_ssize_t at = 0; made != NULL && at < size; at++) {
        PyObject *item = PyTuple_GET_ITEM(values, at);
        Py_INCREF(item), PyTuple_SET_ITEM(made, at, item);
    }
    return made;
}
static inline PyObject *get_field(PyObject *object, Py_ssize_t place) {
    PyObject *value = *(PyObject **)((char *)object + place);
    if (value == NULL) PyErr_SetNone(PyExc_AttributeError);
    Py_XINCREF(value);
    return value;
}
#define WORD(name, type, turn) \
    static inline type load_##name(const uint8_t *data, int64_t at) { type w; memcpy(&w, data + at, sizeof w); return turn(w); } \
    static inline void store_##name(uint8_t *data, int64_t at, type w) { w = turn(w); memcpy(data + at, &w, sizeof w); }
WORD(u16, uint16_t, ) WORD(u32, uint32_t, ) WORD(u64, uint64_t, ) WORD(be_u16, uint16_t, __builtin_bswap16)
WORD(be_u32, uint32_t, __builtin_bswap32) WORD(be_u64, uint64_t, __builtin_bswap64)
#define load_be_i16(data, at) (int16_t)load_be_u16(data, at)
#define load_be_i32(data, at) (int32_t)load_be_u32(data, at)
#define load_be_i64(data, at) (int64_t)load_be_u64(data, at)

#define LANE 256 /* bytes of each of three CRCs that are computed side by side, because one instruction takes three cycles */
/* crc_table: the CRC of one byte. crc_far[k][b]: the CRC of which byte k is b and the others 0, after LANE bytes of zero. */
static uint32_t crc_table[256], crc_far[4][256];
__attribute__((constructor)) static void crc_prepare(void) {
    for (int byte = 0; byte < 256; byte++) {
        crc_table[byte] = (uint32_t)byte;
        for (int bit = 0; bit < 8; bit++) crc_table[byte] = (crc_table[byte] >> 1) ^ (crc_table[byte] & 1 ? 0x82F63B78 : 0);
    }
    for (int at = 0; at < 1024; at++) {
        int low = at & -at & 255, rest = (at & 255) - low;
        uint32_t far = (uint32_t)low << 8 * (at >> 8);
        for (int zero = 0; zero < LANE && !rest; zero++) far = (far >> 8) ^ crc_table[far & 255];
        crc_far[at >> 8][at & 255] = rest ? crc_far[at >> 8][rest] ^ crc_far[at >> 8][low] : far;
    }
}
#define FAR(c) (crc_far[0][(c) & 255] ^ crc_far[1][(c) >> 8 & 255] ^ crc_far[2][(c) >> 16 & 255] ^ crc_far[3][(uint32_t)(c) >> 24])
#if defined(__x86_64__)
#define HAS_CRC __builtin_cpu_supports("sse4.2")
#define CRC_64(crc, data, at) (uint32_t)__builtin_ia32_crc32di(crc, load_u64(data, at))
__attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#define HAS_CRC (getauxval(AT_HWCAP) >> 7 & 1)
#define CRC_64(crc, data, at) __builtin_aarch64_crc32cx(crc, load_u64(data, at))
__attribute__((target("+crc")))
#else
#define HAS_CRC 0
#define CRC_64(crc, data, at) 0
#endif
/* Add whole words to the CRC; return the number of bytes that are left. */
static int64_t crc_words(const uint8_t **data, int64_t size, uint32_t *sum) {
    uint32_t one = *sum, two, three;
    const uint8_t *at = *data;
    for (; size >= 3 * LANE; size -= 3 * LANE, at += 3 * LANE) {
        two = three = 0;
        for (int64_t i = 0; i < LANE; i += 8) {
            one = CRC_64(one, at, i), two = CRC_64(two, at, i + LANE), three = CRC_64(three, at, i + 2 * LANE);
        }
        two ^= FAR(one), one = FAR(two) ^ three;
    }
    for (; size >= 8; size -= 8, at += 8) one = CRC_64(one, at, 0);
    *data = at, *sum = one;
    return size;
}
static inline uint32_t crc32c(const uint8_t *data, int64_t at, int64_t size) {
    uint32_t sum = 0xFFFFFFFF;
    data += at;
    if (HAS_CRC) size = crc_words(&data, size, &sum);
    while (size-- > 0) sum = (sum >> 8) ^ crc_table[(sum ^ *data++) & 255];
    return sum ^ 0xFFFFFFFF;
}
