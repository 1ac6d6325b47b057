cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long _HEADER_BYTES, _LENGTH_OFFSET, _MIN_RECORD_BYTES
cdef long long _CONTROL, _TRANSACTIONAL, _APPEND_TIME_BIT, _CODEC
cdef long long _COLUMNS, _HEADERS_START, _HEADERS
cdef long long _BEGIN, _SIZE, _VERIFIED_FROM, _VERIFIED_TO
cdef long long _START_OFFSET, _END_OFFSET, _MIN_TIME, _MAX_TIME, _HAS_KEY, _CLEANED_BELOW
cdef long long _ROWS, _CONSUMED, _NEXT_OFFSET
cdef long long _NEED_BYTES, _TABLE_FULL, _END, _COMPRESSED, _OLD_FORMAT, _BAD_CRC, _MALFORMED, _HOLE
cdef long long _PRODUCER, _FIRST, _LAST
cdef long long _BASE_OFFSET, _BASE_TIMESTAMP, _APPEND_TIME, _IS_APPEND_TIME, _RECORDS, _SECTION_START, _SECTION_END

@cython.locals(held=words.Held, span=words.Held, wanted=words.Held, wanted_key=words.Held, transactions=words.Held,
               rows=words.Held, done=words.Held, status=longlong)
cpdef decode_chunk(chunk, bounds, limits, key, aborted, table, progress)

@cython.locals(held=words.Held, bases=words.Held, wanted=words.Held, wanted_key=words.Held, rows=words.Held,
               done=words.Held, row=longlong)
cpdef decode_section(buffer, context, limits, key, table, progress)

@cython.locals(held=words.Held, begins=words.Held, lengths=words.Held, rows=words.Held, ends=words.Held,
               bits=words.Held, target=words.Held, nulls=longlong)
cpdef gather(buffer, starts, sizes, span, offsets, validity, data)

@cython.locals(held=words.Held, total=longlong)
cpdef total_size(sizes)

@cython.locals(held=words.Held, rows=words.Held, numbers=words.Held, found=words.Held, number=longlong)
cpdef header_fields(buffer, table, span, fields)

@cython.locals(at=longlong, size=longlong, status=longlong, batch_size=longlong, is_wanted=bint)
cdef long long _decode_batches(
    const unsigned char* chunk, long long* bounds, long long* limits, const unsigned char* key, long long key_size,
    long long* aborted, long long transactions, long long* table, long long capacity,
    long long* progress) noexcept nogil

@cython.locals(base=longlong, length=longlong, delta=longlong, attributes=longlong, batch_size=longlong, is_late=bint,
               size=longlong, is_verified=bint, next_at=longlong)
cdef (long long, long long, bint) _look(
    const unsigned char* chunk, long long at, long long* bounds, long long lowest, long long* limits,
    long long* aborted, long long transactions) noexcept nogil

cdef bint _reaches_into(const unsigned char* chunk, long long at, long long size, long long last) noexcept nogil

@cython.locals(low=longlong, high=longlong, middle=longlong, other=longlong)
cdef bint _is_aborted(long long* aborted, long long transactions, long long producer, long long offset) noexcept nogil

@cython.locals(count=longlong, is_append_time=longlong, row=longlong)
cdef long long _decode_batch(
    const unsigned char* chunk, long long at, long long batch_size, long long* limits, const unsigned char* key,
    long long key_size, long long* table, long long capacity, long long* progress) noexcept nogil

@cython.locals(start_offset=longlong, end_offset=longlong, min_time=longlong, max_time=longlong, has_key=longlong,
               _=longlong, time_delta=longlong, offset_delta=longlong, key_start=longlong, size=longlong,
               value_start=longlong, value_size=longlong, headers_start=longlong, headers=longlong, timestamp=longlong,
               offset=longlong, slot=longlong)
cdef long long _decode_records(
    const unsigned char* data, long long position, long long end, long long count, long long base_offset,
    long long base_timestamp, long long append_time, long long is_append_time, long long* limits,
    const unsigned char* key, long long key_size, long long* table, long long capacity, long long row) noexcept nogil

@cython.locals(raw=ulonglong, raw_time=ulonglong, raw_offset=ulonglong, length=longlong, record_end=longlong,
               key_start=longlong, key_size=longlong, value_start=longlong, value_size=longlong,
               headers_start=longlong, headers=longlong)
cdef (long long, long long, long long, long long, long long, long long, long long, long long, long long) _record(
    const unsigned char* data, long long position, long long end) noexcept nogil

@cython.locals(_=longlong, _start=longlong, size=longlong)
cdef long long _skip_headers(
    const unsigned char* data, long long position, long long count, long long end) noexcept nogil

@cython.locals(index=longlong)
cdef bint _is_key(
    const unsigned char* data, long long start, long long size, const unsigned char* key,
    long long key_size) noexcept nogil

@cython.locals(raw=ulonglong, shift=int, index=longlong, byte=ulonglong)
cdef (unsigned long long, long long) _long_varint(
    const unsigned char* data, long long position, long long max_bytes) noexcept nogil

@cython.locals(first=ulonglong, second=ulonglong)
cdef (unsigned long long, long long) _raw_varint(
    const unsigned char* data, long long position, long long max_bytes) noexcept nogil

cdef long long _zigzag(unsigned long long raw) noexcept nogil

@cython.locals(total=ulonglong)
cdef long long _sum(unsigned long long base, unsigned long long delta) noexcept nogil

@cython.locals(raw=ulonglong, size=longlong)
cdef (long long, long long, long long) _field(
    const unsigned char* data, long long position, long long end) noexcept nogil

@cython.locals(out=longlong, at=longlong, nulls=longlong, row=longlong, size=longlong)
cdef long long _gather(
    const unsigned char* buffer, long long* starts, long long* sizes, long long* span, unsigned char* offsets,
    unsigned char* validity, unsigned char* data) noexcept nogil

@cython.locals(total=longlong, row=longlong)
cdef long long _total(long long* sizes, long long count) noexcept nogil

@cython.locals(number=longlong, row=longlong, _=longlong, position=longlong, name=longlong, name_size=longlong,
               value=longlong, value_size=longlong)
cdef long long _find_headers(
    const unsigned char* data, long long size, long long* table, long long capacity, long long* span,
    long long* fields, long long room) noexcept nogil
