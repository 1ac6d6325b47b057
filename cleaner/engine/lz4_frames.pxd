cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long ATTRIBUTES, BATCH_OVERHEAD, BODY, BODY_SIZE, CODEC_MASK, COLUMNS, COUNT, LOG_OVERHEAD, LZ4, LZ4_HASH_SLOTS
cdef long long OUT_CODEC, OUT_COLUMNS, OUT_POSITION, OUT_SIZE, REASON, SMALLEST_RECORD, STATE
cdef long long _PACKED, _EXPANDED, _POISON, _BAD_COUNT, _MAGIC, _LINKED, _INDEPENDENT, _LEFT_TO_LIBRARY, _STORED, _BLOCK_BYTES
cdef long long _MIN_MATCH, _LAST_LITERALS, _MATCH_LIMIT, _SHORT_MATCH
cdef unsigned long long _HASH_FACTOR, _HASH_SHIFT
cdef bytes _CHECKS
cdef const unsigned char* _HEADER_CHECKS

@cython.locals(held=words.Held, batches=words.Held, first=longlong, end=longlong, capacity=longlong, max_batch_bytes=longlong,
               full=longlong, done=longlong)
cpdef expand_lz4(buffer, table, rows, long long used, limits)

@cython.locals(held=words.Held, batches=words.Held, target_bytes=words.Held, hashes=words.Held, first=longlong, end=longlong,
               done=longlong)
cpdef pack_lz4(out, out_table, rows, packed, long long target)

@cython.locals(length=longlong, byte=longlong)
cdef (long long, long long) _length(
    const unsigned char* data, long long position, long long end, long long nibble) noexcept nogil

@cython.locals(copied=longlong, step=longlong)
cdef void _copy_match(
    unsigned char* data, long long target, long long distance, long long size, long long limit) noexcept nogil

cdef void _copy_literals(
    unsigned char* data, long long target, long long position, long long size, long long end,
    long long limit) noexcept nogil

@cython.locals(token=longlong, literals=longlong, distance=longlong, size=longlong)
cdef long long _decode_block(
    unsigned char* data, long long position, long long end, long long target, long long limit,
    long long lowest) noexcept nogil

@cython.locals(flags=longlong, sizes=longlong, kind=longlong)
cdef long long _block_bytes(const unsigned char* data, long long position, long long end) noexcept nogil

@cython.locals(max_block_bytes=longlong, is_independent=bint, start=longlong, size=longlong, is_stored=bint, block_limit=longlong,
               lowest=longlong)
cdef long long _decode_frame(
    unsigned char* data, long long position, long long end, long long target, long long limit) noexcept nogil

@cython.locals(number=longlong, row=longlong, body=longlong, start=longlong, target=longlong)
cdef (long long, long long) _expand(
    unsigned char* data, long long* table, long long first, long long end, long long used, long long capacity,
    long long max_batch_bytes, long long full) noexcept nogil

@cython.locals(begin=longlong)
cdef long long _count_matching(
    const unsigned char* source, long long first, long long second, long long end) noexcept nogil

cdef long long _write_length(unsigned char* out, long long target, long long rest) noexcept nogil

@cython.locals(literals=longlong)
cdef long long _write_literals(
    const unsigned char* source, long long start, long long end, unsigned char* out, long long target,
    long long match) noexcept nogil

@cython.locals(anchor=longlong, position=longlong, word=ulonglong, slot=longlong, found=longlong, size=longlong)
cdef long long _compress_block(
    const unsigned char* source, long long start, long long end, unsigned char* out, long long target,
    long long* hashes) noexcept nogil

@cython.locals(size=longlong, block_end=longlong)
cdef long long _compress_frame(
    const unsigned char* source, long long position, long long end, unsigned char* out, long long target,
    long long* hashes) noexcept nogil

@cython.locals(slot=longlong, number=longlong, row=longlong, start=longlong, size=longlong, after=longlong)
cdef (long long, long long) _pack(
    const unsigned char* out, long long* table, long long first, long long end, unsigned char* packed, long long target,
    long long* hashes) noexcept nogil
