cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long _HEADER_BYTES, _LENGTH_OFFSET, _MAX_RELATIVE_OFFSET
cdef long long _CONTROL, _TRANSACTIONAL, _PRODUCER, _ATTRIBUTES, _ROW_COLUMNS, _KEPT_BATCHES
cdef long long _ENTRIES, _ROWS, _SLOTS
cdef unsigned long long _SPREAD

@cython.final
cdef class SegmentScan:
    cdef public long long base_offset, interval_bytes, next_offset, last_entry_position
    cdef public long long largest_timestamp, largest_offset, last_entry_timestamp, latest_epoch, offset_room, time_room
    cdef public long long consumed
    cdef public bint is_stopped
    cdef long long _offset_count, _time_count, _epoch_count, _row_count
    cdef list _tables, _row_tables
    cdef object _needed_table

    @cython.locals(held=words.Held, offsets=words.Held, times=words.Held, epochs=words.Held, rows=words.Held, is_full=bint)
    cpdef bint scan(self, chunk, long long start, long long size, long long file_position) except *
    @cython.locals(rows=words.Held, producers=words.Held, marks=words.Held, needed=words.Held, number=longlong)
    cpdef list needed_rows(self)
    @cython.locals(is_full=bint, batch=longlong, epoch=longlong)
    cdef bint _walk(self, const unsigned char* chunk, long long at, long long size, long long file_position,
                    unsigned char* offsets, unsigned char* times, long long* epochs, long long* rows) noexcept nogil
    cdef bint _has_room(self) noexcept nogil
    @cython.locals(length=longlong, base=longlong, delta=longlong)
    cdef long long _whole_batch(self, const unsigned char* chunk, long long at, long long size) noexcept nogil
    @cython.locals(last_offset=longlong, timestamp=longlong, is_largest=bint, makes_time=bint)
    cdef bint _note_position(self, const unsigned char* chunk, long long at, long long position,
                             unsigned char* offsets, unsigned char* times) noexcept nogil
    @cython.locals(at=longlong)
    cdef void _add_entries(self, long long position, long long last_offset,
                           unsigned char* offsets, unsigned char* times) noexcept nogil

cdef void _write_row(const unsigned char* chunk, long long at, long long size, long long* rows, long long row) noexcept nogil

@cython.locals(slots=longlong)
cdef long long _mask_for(long long count) noexcept nogil

@cython.locals(slot=longlong)
cdef long long _slot(long long* producers, long long producer, long long mask) noexcept nogil

@cython.locals(slot=longlong, number=longlong, mask=longlong)
cdef void _mark_needed(long long* rows, long long count, long long* producers, unsigned char* marks,
                       unsigned char* needed) noexcept nogil

@cython.locals(slot=longlong, number=longlong, producer=longlong, attributes=longlong)
cdef void _mark_forwards(long long* rows, long long count, long long* producers, unsigned char* in_transaction,
                         unsigned char* needed, long long mask) noexcept nogil
