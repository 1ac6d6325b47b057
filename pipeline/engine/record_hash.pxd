cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long _HEADER_BYTES, _LENGTH_OFFSET, _NEED_BYTES, _TABLE_FULL, _NOT_MAGIC_2, _COLUMNS
cdef long long _COMPRESSION_MASK, _APPEND_TIME_MASK
cdef unsigned long long _OFFSET, _TIMESTAMP, _LENGTH, _CHAIN, _FIRST, _SECOND, _MIDDLE, _LAST
cdef unsigned long long _MIX_FIRST, _MIX_SECOND, _SEED_KEY, _SEED_VALUE, _SIGN_64

@cython.locals(held=words.Held, rows=words.Held, room=longlong, stop=longlong, count=longlong, position=longlong)
cpdef walk_batches(chunk, long long start, long long size, table)

@cython.locals(base_offset=longlong, base_timestamp=longlong, append_time=longlong, held=words.Held,
               offsets=words.Held, timestamps=words.Held, hashes=words.Held, done=longlong)
cpdef hash_section(section, bases, long long count, out)

@cython.locals(held=words.Held, rows=words.Held, offsets=words.Held, timestamps=words.Held, hashes=words.Held,
               done=longlong, records=longlong)
cpdef hash_rows(chunk, table, long long first, long long last, out)

@cython.locals(offsets=words.Held, timestamps=words.Held, out=words.Held, keys=words.Held, key_starts=words.Held,
               key_valid=words.Held, values=words.Held, value_starts=words.Held, value_valid=words.Held)
cpdef hash_columns(offsets_and_times, key, value, hashes)

@cython.locals(rows=longlong, is_old=bint, base=longlong, length=longlong, delta=longlong, count=longlong,
               whole=longlong)
cdef (long long, long long, long long) _walk(
    const unsigned char* chunk, long long position, long long size, long long* table, long long room) noexcept nogil

cdef void _write_row(
    const unsigned char* chunk, long long at, long long size, long long* table, long long row) noexcept nogil

cdef long long _to_signed(unsigned long long word) noexcept nogil

cdef long long _sum(unsigned long long one, unsigned long long other) noexcept nogil

cdef long long _zigzag(unsigned long long raw) noexcept nogil

@cython.locals(first=ulonglong, second=ulonglong)
cdef (long long, long long) _read_varint(
    const unsigned char* data, long long at, long long end, long long bits) noexcept nogil

@cython.locals(raw=ulonglong, shift=longlong, byte=ulonglong)
cdef (long long, long long) _read_long_varint(
    const unsigned char* data, long long at, long long end, long long bits) noexcept nogil

cdef unsigned long long _fold(unsigned long long one, unsigned long long other) noexcept nogil

@cython.locals(first=ulonglong, second=ulonglong, end=longlong, begin=longlong, low=ulonglong, high=ulonglong)
cdef unsigned long long _field_hash(
    const unsigned char* data, long long at, long long size, unsigned long long seed) noexcept nogil

@cython.locals(word=ulonglong)
cdef (unsigned long long, unsigned long long) _read_last(
    const unsigned char* data, long long start, long long end) noexcept nogil

@cython.locals(x=ulonglong)
cdef unsigned long long _record_hash(
    unsigned long long offset, unsigned long long timestamp, unsigned long long key,
    unsigned long long value) noexcept nogil

@cython.locals(size=longlong, length=longlong)
cdef (unsigned long long, long long) _read_field(
    const unsigned char* data, long long at, long long end, unsigned long long seed) noexcept nogil

@cython.locals(_=longlong, length=longlong, end=longlong, timestamp=longlong, offset=longlong, key=ulonglong,
               value=ulonglong)
cdef long long _hash_records(
    const unsigned char* data, long long at, long long limit, long long base_offset, long long base_timestamp,
    long long append_time, long long count, long long* offsets, long long* timestamps, unsigned long long* hashes,
    long long row) noexcept nogil

@cython.locals(records=longlong, number=longlong, row=longlong, count=longlong, attributes=longlong,
               append_time=longlong, begin=longlong, end=longlong, done=longlong)
cdef (long long, long long) _hash_rows(
    const unsigned char* chunk, long long size, long long* table, long long first, long long last, long long* offsets,
    long long* timestamps, unsigned long long* hashes, long long room) noexcept nogil

@cython.locals(row=longlong, key_size=longlong, value_size=longlong, key=ulonglong, value=ulonglong)
cdef void _hash_columns(
    long long* offsets, long long* timestamps, const unsigned char* keys, long long* key_starts,
    const unsigned char* key_valid, const unsigned char* values, long long* value_starts,
    const unsigned char* value_valid, unsigned long long* hashes, long long count) noexcept nogil
