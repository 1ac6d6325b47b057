cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, COLUMNS, CONTROL_ABORT, CONTROL_EMPTIED, CONTROL_MASK
cdef long long CONTROL_OTHER, DECISION, DELETE_HORIZON_MASK, DISCARD, LAST_OFFSET_DELTA, MARKER_OF_EMPTY_TRANSACTION
cdef long long NOT_INDEXED, PRODUCER_EPOCH, PRODUCER_ID, RETAIN_EMPTY, STATE, TRANSACTIONAL_MASK
cdef long long _POISON, _FREE
cdef unsigned long long _SPREAD

@cython.locals(batches=words.Held, kinds=words.Held, aborted=words.Held, last=words.Held, fenced=words.Held,
               known=words.Held, found=words.Held, first=longlong, end=longlong, work=BatchDecider)
cpdef decide_batches(table, rows, types, transactions, last_batches, fences, producers, long long now, long long end_offset,
                     markers)

@cython.locals(origin=words.Held, target=words.Held, old_slots=longlong, new_slots=longlong, moved=longlong)
cpdef move_producers(old, new)

@cython.locals(spread=ulonglong, slot=longlong)
cdef long long _slot(const long long* producers, long long slots, long long producer_id) noexcept nogil

@cython.locals(moved=longlong, index=longlong, slot=longlong)
cdef long long _move(const long long* old, long long old_slots, long long* new, long long new_slots) noexcept nogil

@cython.locals(low=longlong, high=longlong, middle=longlong)
cdef bint _has_pair(const long long* pairs, long long count, long long first, long long second) noexcept nogil

@cython.final
cdef class BatchDecider:
    cdef long long* table
    cdef const long long* types
    cdef const long long* aborted
    cdef const long long* last_batches
    cdef const long long* fences
    cdef long long* producers
    cdef long long now, end_offset, aborted_count, last_count, fenced_count, slots, found, added

    cdef void take(self, long long* table, const long long* types, const long long* aborted,
                   const long long* last_batches, const long long* fences, long long* producers) noexcept nogil
    @cython.locals(number=longlong, row=longlong, decision=longlong, last_offset=longlong)
    cdef void run(self, long long first, long long end, long long* markers) noexcept nogil
    @cython.locals(low=longlong, high=longlong, middle=longlong, owner=longlong)
    cdef long long _find_aborted(self, long long producer_id, long long offset) noexcept nogil
    @cython.locals(producer_id=longlong)
    cdef bint _is_kept_by_state(self, long long row, long long last_offset) noexcept nogil
    @cython.locals(producer_id=longlong, slot=longlong, is_open=bint, has_horizon=bint, goes=bint, entry=longlong)
    cdef long long _decide_marker(self, long long row, long long kind, long long last_offset,
                                  long long* markers) noexcept nogil
    @cython.locals(slot=longlong)
    cdef void _open_transaction(self, long long producer_id) noexcept nogil
    @cython.locals(is_data=bint)
    cdef void _note_poison(self, long long row) noexcept nogil
    @cython.locals(entry=longlong, is_aborted=bint)
    cdef long long _decide_data(self, long long row, long long last_offset) noexcept nogil
