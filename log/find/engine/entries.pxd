cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long _NO_KEY, _HEADER_BYTES, _ENTRY_BYTES, _PAGE_BYTES, _OUT_OF_CHAIN, _BAD_ENTRY, _UNREADABLE
cdef unsigned long long _MAX_TIME_DIFF

@cython.locals(number=longlong, capacity=longlong, begin=longlong, slots=longlong, held=words.Held, entries=words.Held,
               keys=words.Held, offsets=words.Held, timestamps=words.Held, row=longlong, next_entry=longlong,
               low=longlong, high=longlong, last_offset=longlong)
cpdef put_entries(front, rows, layout, long long start, long long end)

@cython.locals(entries=words.Held, offsets=words.Held, positions=words.Held, sizes=words.Held, tags=words.Held)
cpdef put_tags(rows, long long start, long long end)

@cython.locals(number=longlong, last_offset=longlong, held=words.Held, found=words.Held, damaged=longlong)
cpdef restore_slots(front, long long slots, entries, restored)

@cython.locals(held=words.Held, written=longlong)
cpdef write_pieces(int descriptor, data, long long position, long long piece)

@cython.final
cdef class Chain:
    cdef public long long number, limit, last_offset
    cdef public int damage
    cdef int descriptor
    cdef long long slots, key_hash, low, high, min_offset, begin_offset, _window_start, _window_end
    cdef object _window

    @cython.locals(offsets=words.Held, window=words.Held, length=longlong)
    cpdef list next_offsets(self, long long count)
    @cython.locals(found=longlong, at=longlong, stored=longlong, offset=longlong, diff=longlong)
    cdef long long _follow(self, long long* offsets, long long count, unsigned char* window) noexcept nogil
    cdef bint _is_of_chain(self, long long stored, long long offset, long long diff) noexcept nogil
    @cython.locals(position=longlong, size=longlong)
    cdef long long _entry_at(self, unsigned char* window) noexcept nogil

@cython.locals(low=longlong, high=longlong, last_offset=longlong, entry=longlong, hashed=longlong, timestamp=longlong,
               slot=longlong)
cdef (long long, long long, long long, long long, long long) _put(
    unsigned char* front, long long slots, unsigned char* entries, long long number, long long capacity,
    long long begin, long long* keys, long long* offsets, long long* timestamps, long long row,
    long long end) noexcept nogil

@cython.locals(number=longlong)
cdef long long _slot(unsigned int hashed, unsigned int slots) noexcept nogil

@cython.locals(difference=ulonglong)
cdef unsigned int _time_diff(long long timestamp, long long begin) noexcept nogil

@cython.locals(row=longlong, number=longlong)
cdef void _put_tags(
    unsigned char* entries, long long size, long long* offsets, long long* positions, long long* sizes,
    long long* tags, long long start, long long end) noexcept nogil

@cython.locals(at=longlong, hashed=longlong, offset=longlong, slot=longlong)
cdef (long long, long long, long long) _restore(
    unsigned char* front, long long slots, const unsigned char* entries, long long count, long long number,
    long long last_offset) noexcept nogil

@cython.locals(written=longlong, rest=longlong, done=longlong)
cdef long long _write(
    int descriptor, const unsigned char* data, long long size, long long position, long long piece) noexcept nogil
