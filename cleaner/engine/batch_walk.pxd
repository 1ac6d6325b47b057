cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, BATCH_OVERHEAD, BODY, BODY_SIZE, CODEC_MASK, COLUMNS
cdef long long CONTROL_ABORT, CONTROL_COMMIT, CONTROL_EMPTIED, CONTROL_MASK, CONTROL_OTHER, COUNT, DECISION
cdef long long DELETE_HORIZON_MASK, DISCARD, LAST_OFFSET_DELTA, LOG_OVERHEAD, MARKER_OF_EMPTY_TRANSACTION, MAX_TIMESTAMP
cdef long long NOT_INDEXED, ORDINAL, OUT_CHANGED, OUT_CODEC, OUT_COLUMNS, OUT_COUNT, OUT_LAST_OFFSET, OUT_MAX_TIMESTAMP
cdef long long OUT_POSITION, OUT_SIZE, POSITION, PRODUCER_EPOCH, PRODUCER_ID, REASON, RETAIN_EMPTY, SIZE, SMALLEST_RECORD
cdef long long STAT_BATCHES_CHANGED, STAT_KEYLESS, STAT_RECORDS_KEPT, STAT_RECORDS_READ, STAT_TOMBSTONES_DROPPED, STATE
cdef long long TIMESTAMP_TYPE_MASK, UNKNOWN_OFFSET
cdef long long _PACKED, _CONVERTED, _POISON, _BAD_MAGIC, _BAD_CRC, _BAD_COUNT, _BAD_RECORDS
cdef long long _SMALLEST_LEGACY, _NO_TIMESTAMP, _ENTRY_COLUMNS

@cython.locals(held=words.Held, rows=words.Held, position=longlong, end=longlong, low=longlong, high=longlong,
               capacity=longlong, found=longlong, claimed=longlong)
cpdef scan_batches(buffer, limits, offsets, table)

@cython.locals(held=words.Held, batches=words.Held, found_keys=words.Held, first=longlong, end=longlong, found=longlong)
cpdef parse_records(buffer, table, rows, keys)

@cython.locals(held=words.Held, batches=words.Held, found=words.Held, first=longlong, end=longlong)
cpdef find_control_types(buffer, table, rows, types)

@cython.locals(held=words.Held, batches=words.Held, bits=words.Held, target=words.Held, written=words.Held,
               counted=words.Held, first=longlong, end=longlong, done=longlong, work=BatchFilter)
cpdef filter_batches(buffer, table, rows, superseded, times, output, stats)

@cython.locals(batches=words.Held, carried=words.Held, made=words.Held, found=longlong)
cpdef index_entries(out_table, long long written, long long interval, state, entries)

cdef long long _zigzag(unsigned long long raw) noexcept nogil
cdef long long _to_signed(unsigned long long raw) noexcept nogil

@cython.locals(raw=ulonglong)
cdef long long _sum(long long first, long long second) noexcept nogil

@cython.locals(raw=ulonglong, byte=ulonglong, shift=int)
cdef (long long, long long) _long_varint(const unsigned char* data, long long position, long long end) noexcept nogil

@cython.locals(raw=ulonglong, second=ulonglong)
cdef (long long, long long) _varint(const unsigned char* data, long long position, long long end) noexcept nogil

@cython.locals(found=longlong, size=longlong)
cdef (long long, long long, long long) _scan(
    const unsigned char* data, long long position, long long end, long long low, long long high, long long* table,
    long long capacity) noexcept nogil

@cython.locals(column=longlong, magic=longlong)
cdef void _describe(
    const unsigned char* data, long long position, long long size, long long low, long long high, long long* table,
    long long row) noexcept nogil

cdef void _mark_poison(long long* table, long long row, long long reason) noexcept nogil
cdef void _fill_header(
    const unsigned char* data, long long position, long long size, long long* table, long long row) noexcept nogil

@cython.locals(base=longlong, delta=longlong, count=longlong)
cdef void _check_header(
    const unsigned char* data, long long position, long long size, long long low, long long high, long long* table,
    long long row) noexcept nogil

@cython.locals(count=longlong, size=longlong, _=longlong)
cdef long long _skip_headers(const unsigned char* data, long long position, long long end) noexcept nogil

@cython.locals(length=longlong, timestamp_delta=longlong, offset_delta=longlong, key_size=longlong, key=longlong,
               value_size=longlong)
cdef (long long, long long, long long, long long, long long, long long) _record(
    const unsigned char* data, long long position, long long end) noexcept nogil

@cython.locals(found=longlong, number=longlong, row=longlong, after=longlong)
cdef long long _parse(
    const unsigned char* data, long long* table, long long first, long long end, long long* keys) noexcept nogil

@cython.locals(position=longlong, end=longlong, last_delta=longlong, last_offset_delta=longlong, ordinal=longlong, number=longlong,
               key=longlong, key_size=longlong, delta=longlong, _=longlong)
cdef long long _parse_batch(
    const unsigned char* data, long long* table, long long row, long long* keys, long long found) noexcept nogil

@cython.locals(number=longlong, row=longlong)
cdef void _find_control_types(
    const unsigned char* data, long long* table, long long first, long long end, long long* types) noexcept nogil

@cython.locals(body=longlong, end=longlong, key=longlong, key_size=longlong, kind=longlong, _=longlong)
cdef long long _control_type(const unsigned char* data, long long* table, long long row) noexcept nogil

@cython.locals(raw=ulonglong)
cdef long long _write_varint(unsigned char* out, long long target, long long value) noexcept nogil

@cython.locals(raw=ulonglong, size=longlong)
cdef long long _varint_size(long long value) noexcept nogil

@cython.locals(length=longlong, body=longlong, delta=longlong, rest=longlong, shifted=longlong)
cdef long long _rebase(
    unsigned char* out, long long source, long long end, long long target, long long shift) noexcept nogil

cdef void _finish(unsigned char* out, long long start, long long end) noexcept nogil

@cython.final
cdef class BatchFilter:
    cdef const unsigned char* data
    cdef const unsigned char* superseded
    cdef unsigned char* out
    cdef long long* table
    cdef long long* out_table
    cdef long long* stats
    cdef long long bias, now, horizon, out_rows, out_bytes, target, written
    cdef long long kept, tombstones, keyless, expired, largest, first_bit
    cdef bint is_control, is_expired

    cdef void take(self, const unsigned char* data, long long* table, const unsigned char* superseded,
                   unsigned char* out, long long* out_table, long long* stats) noexcept nogil
    @cython.locals(number=longlong, row=longlong, start=longlong)
    cdef long long run(self, long long first, long long end) noexcept nogil
    @cython.locals(rewritten=longlong)
    cdef long long _max_bytes(self, long long row) noexcept nogil
    @cython.locals(decision=longlong, count=longlong, end=longlong, is_converted=bint, sets_horizon=bint)
    cdef long long _write(self, long long row, long long start) noexcept nogil
    @cython.locals(stays=bint)
    cdef long long _write_rest(self, long long row, long long start, bint is_converted) noexcept nogil
    @cython.locals(position=longlong, run=longlong, end=longlong, last_delta=longlong, largest=longlong, base_timestamp=longlong,
                   last_offset_delta=longlong, number=longlong, start=longlong, key_size=longlong, value_size=longlong,
                   timestamp_delta=longlong, delta=longlong, _=longlong)
    cdef long long _copy_kept(self, long long row, long long target) noexcept nogil
    @cython.locals(attributes=longlong)
    cdef void _begin(self, long long row) noexcept nogil
    @cython.locals(bit=longlong)
    cdef bint _stays(self, long long number, long long key_size, long long value_size) noexcept nogil
    cdef long long _copy_run(self, long long start, long long end, long long target) noexcept nogil
    @cython.locals(at=longlong)
    cdef long long _emit(self, long long row, long long start, long long size) noexcept nogil
    @cython.locals(size=longlong, at=longlong)
    cdef long long _keep_whole(self, long long row, long long start) noexcept nogil
    @cython.locals(body=longlong)
    cdef void _copy_header(self, long long row, long long start, long long attributes) noexcept nogil
    @cython.locals(at=longlong)
    cdef long long _write_empty(self, long long row, long long start) noexcept nogil
    @cython.locals(attributes=longlong, largest=longlong, gap=longlong, body=longlong, shift=longlong, at=longlong)
    cdef long long _write_changed(self, long long row, long long start, long long end, long long horizon) noexcept nogil

@cython.locals(found=longlong, number=longlong, row=longlong, entry=longlong)
cdef long long _index_entries(
    long long* table, long long written, long long interval, long long* state, long long* entries) noexcept nogil
