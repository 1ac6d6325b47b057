cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long _END, _FULL, _ODD, _NO_KEY, _HEADER_BYTES, _MAGIC_OFFSET, _LENGTH_OFFSET, _MIN_RECORD_BYTES
cdef long long _CONTROL, _APPEND_TIME_MASK, _COMPRESSION_MASK, _HAS_KEY, _HAS_TAG, _APPEND_TIME, _LARGEST_HASH, _SIGN_32
cdef unsigned long long _SIGN_64

@cython.locals(held=words.Held, name=words.Held, offsets=words.Held, timestamps=words.Held, keys=words.Held,
               tags=words.Held, positions=words.Held, sizes=words.Held, seed=ulonglong, before=longlong,
               capacity=longlong, stop=longlong, position=longlong, next_offset=longlong, count=longlong,
               lowest=longlong, end_offset=longlong)
cpdef walk_chunk(rows, chunk, settings, long long base_position)

@cython.locals(flags=longlong, append_time=longlong, base_timestamp=longlong, begin=longlong, end=longlong,
               held=words.Held, key=words.Held, name=words.Held, tag=words.Held, out=words.Held, found=longlong)
cpdef match_records(section, long long count, query)

@cython.locals(held=words.Held, start=longlong, end=longlong)
cpdef find_nth_record(section, long long index)

@cython.locals(raw=ulonglong, shift=int, end=longlong, byte=ulonglong)
cdef (unsigned long long, long long) _read_long_varint(
    const unsigned char* data, long long size, long long position, long long max_bytes) noexcept nogil

@cython.locals(first=ulonglong, second=ulonglong)
cdef (unsigned long long, long long) _read_raw(
    const unsigned char* data, long long size, long long position, long long max_bytes) noexcept nogil

cdef long long _to_signed(unsigned long long word) noexcept nogil

cdef long long _zigzag(unsigned long long raw) noexcept nogil

cdef long long _sum(unsigned long long one, unsigned long long other) noexcept nogil

cdef bint _is_sum_larger(long long one, long long other) noexcept nogil

@cython.locals(raw=ulonglong, raw_timestamp=ulonglong, length=longlong, end=longlong)
cdef (long long, long long, long long, long long) _read_deltas(
    const unsigned char* data, long long size, long long position) noexcept nogil

@cython.locals(raw=ulonglong, start=longlong)
cdef (long long, long long) _read_field(
    const unsigned char* data, long long size, long long position, long long end) noexcept nogil

@cython.locals(index=longlong)
cdef bint _is_equal(
    const unsigned char* data, long long start, long long end, const unsigned char* wanted,
    long long size) noexcept nogil

@cython.locals(raw=ulonglong, count=longlong, start=longlong, stop=longlong, is_found=bint, name_start=longlong,
               name_end=longlong, value=longlong)
cdef (long long, long long, long long) _read_tag(
    const unsigned char* data, long long size, long long position, long long end, const unsigned char* name,
    long long length) noexcept nogil

@cython.locals(value=ulonglong, high=ulonglong)
cdef long long _java_hash(
    const unsigned char* data, long long at, long long end, unsigned long long seed) noexcept nogil

@cython.locals(hashed=longlong)
cdef long long _key_hash(
    const unsigned char* data, long long at, long long end, unsigned long long seed) noexcept nogil

@cython.locals(timestamp=longlong, offset=longlong, end=longlong, start=longlong, stop=longlong, key=longlong,
               tag=longlong, _=longlong)
cdef (long long, long long, long long, long long, long long) _walk_record(
    const unsigned char* data, long long limit, long long position, unsigned long long seed, const unsigned char* name,
    long long name_size) noexcept nogil

@cython.locals(position=longlong, next_offset=longlong, batch=longlong, attributes=longlong, records=longlong,
               end=longlong, row=longlong, last_offset=longlong)
cdef (long long, long long, long long, long long) _walk(
    const unsigned char* chunk, long long size, long long base_position, long long lowest, long long end_offset,
    unsigned long long seed, const unsigned char* name, long long name_size, long long count, long long capacity,
    long long* offsets, long long* timestamps, long long* keys, long long* tags, long long* positions,
    long long* sizes) noexcept nogil

@cython.locals(first_offset=longlong, following=longlong)
cdef bint _is_possible(
    const unsigned char* chunk, long long size, long long position, long long end, long long last_offset,
    long long lowest, long long end_offset) noexcept nogil

@cython.locals(base_offset=longlong, base_timestamp=longlong, has_append_time=bint, max_timestamp=longlong, at=longlong,
               timestamp=longlong, offset=longlong, key=longlong, tag=longlong, before=longlong, last_delta=longlong)
cdef long long _walk_batch(
    const unsigned char* chunk, long long batch, long long limit, long long records, unsigned long long seed,
    const unsigned char* name, long long name_size, long long row, long long* offsets, long long* timestamps,
    long long* keys, long long* tags) noexcept nogil

@cython.locals(timestamp=longlong, _=longlong, end=longlong, matches=bint, start=longlong, stop=longlong)
cdef (bint, long long) _match_record(
    const unsigned char* data, long long size, long long position, long long flags, long long base_timestamp,
    long long append_time, long long begin, long long last, const unsigned char* key, long long key_size,
    const unsigned char* name, long long name_size, const unsigned char* tag, long long tag_size) noexcept nogil

@cython.locals(found=longlong, position=longlong, _=longlong, matches=bint, end=longlong)
cdef long long _match_all(
    const unsigned char* data, long long size, long long count, long long flags, long long base_timestamp,
    long long append_time, long long begin, long long last, const unsigned char* key, long long key_size,
    const unsigned char* name, long long name_size, const unsigned char* tag, long long tag_size,
    long long* spans) noexcept nogil

@cython.locals(start=longlong, position=longlong, raw=ulonglong, length=longlong)
cdef (long long, long long) _nth(const unsigned char* data, long long size, long long index) noexcept nogil
