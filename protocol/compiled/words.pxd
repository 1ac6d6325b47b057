# words.py for compiled modules: the same names in C
cdef extern from "words.h" nogil:
    ctypedef struct Held "held_t":
        const unsigned char* data
        unsigned char* bytes
        long long* integers
        unsigned long long* words
        Py_ssize_t size

    const unsigned long long MASK_32 "0xFFFFFFFFULL"
    const unsigned long long MASK_64 "0xFFFFFFFFFFFFFFFFULL"
    const long long MIN_INT_64 "INT64_MIN"
    const long long MAX_INT_64 "INT64_MAX"
    unsigned short load_u16(const unsigned char* data, long long at) noexcept
    unsigned int load_u32(const unsigned char* data, long long at) noexcept
    unsigned long long load_u64(const unsigned char* data, long long at) noexcept
    unsigned short load_be_u16(const unsigned char* data, long long at) noexcept
    unsigned int load_be_u32(const unsigned char* data, long long at) noexcept
    unsigned long long load_be_u64(const unsigned char* data, long long at) noexcept
    short load_be_i16(const unsigned char* data, long long at) noexcept
    int load_be_i32(const unsigned char* data, long long at) noexcept
    long long load_be_i64(const unsigned char* data, long long at) noexcept
    void store_u16(unsigned char* data, long long at, unsigned short word) noexcept
    void store_u32(unsigned char* data, long long at, unsigned int word) noexcept
    void store_u64(unsigned char* data, long long at, unsigned long long word) noexcept
    void store_be_u16(unsigned char* data, long long at, unsigned short word) noexcept
    void store_be_u32(unsigned char* data, long long at, unsigned int word) noexcept
    void store_be_u64(unsigned char* data, long long at, unsigned long long word) noexcept
    void copy_bytes(unsigned char* to, long long at, const unsigned char* origin, long long start, long long size) noexcept
    const unsigned char* at "bytes_at"(const unsigned char* data, long long position) noexcept
    void prefetch(const void* data, long long at) noexcept
    unsigned long long multiply_high(unsigned long long one, unsigned long long other) noexcept
    long long read_at(int descriptor, unsigned char* data, long long at, long long size, long long position) noexcept
    long long read_in_memory(int descriptor, unsigned char* data, long long at, long long size, long long position) noexcept
    long long write_at(int descriptor, const unsigned char* data, long long at, long long size, long long position) noexcept
    unsigned int crc32c(const unsigned char* data, long long at, long long size) noexcept

cdef extern from "words.h":
    Held hold(object buffer) except *
    Held hold_writable(object buffer) except *
    void release(Held held) noexcept
    const Py_ssize_t NO_PLACE
    unsigned char* address_of(object bytearray) noexcept
    bytes copy_of(const unsigned char* data, long long at, long long size)
    str text_of(const unsigned char* data, long long at, long long size)
    object new_object(object cls)
    object tuple_as(object cls, tuple values)
    Py_ssize_t place_of(object slot) except -1
    void put_field(object target, Py_ssize_t place, object value) noexcept
    object get_field(object target, Py_ssize_t place)
