cimport cython
cimport tidelog.protocol.compiled.words as words

cdef unsigned long long _MULTIPLIER, _SEED

@cython.final
cdef class HeldColumn:
    cdef words.Held data, start, length
    cpdef void release(self)

@cython.final
cdef class HeldColumns:
    cdef HeldColumn key, value, header_key, header_value
    cdef words.Held timestamp, header_start, header_count, rows
    cpdef void release(self)

@cython.locals(column=HeldColumn, found=words.Held)
cpdef write_key_hashes(keys, hashes)

@cython.locals(held=HeldColumns, count=longlong, section_bytes=longlong, base=longlong, largest=longlong)
cpdef take(columns, rows, long long first, long long limit_bytes)

@cython.locals(held=HeldColumns, target=words.Held, written=longlong)
cpdef encode(columns, rows, long long first, long long count, out)

@cython.locals(row=longlong, length=longlong)
cdef void _hash_keys(HeldColumn keys, long long* hashes, long long rows) noexcept nogil

@cython.locals(whole=longlong, hashed=ulonglong, number=longlong, word=ulonglong)
cdef unsigned long long _murmur2(const unsigned char* data, long long start, long long size) noexcept nogil

cdef unsigned long long _zigzag(long long value) noexcept nogil

@cython.locals(raw=ulonglong, size=longlong)
cdef long long _varint_bytes(long long value) noexcept nogil

cdef long long _field_bytes(long long length) noexcept nogil

@cython.locals(headers=longlong, size=longlong, first=longlong, at=longlong)
cdef long long _body_bytes(
    HeldColumns columns, long long row, long long delta, long long base_timestamp) noexcept nogil

@cython.locals(base_timestamp=longlong, largest=longlong, section_bytes=longlong, count=longlong, row=longlong,
               body=longlong, size=longlong, timestamp=longlong)
cdef (long long, long long, long long, long long) _take(
    HeldColumns columns, long long first, long long rows, long long limit_bytes) noexcept nogil

@cython.locals(raw=ulonglong)
cdef long long _put_varint(unsigned char* out, long long at, long long value) noexcept nogil

@cython.locals(length=longlong)
cdef long long _put_field(unsigned char* out, long long at, HeldColumn column, long long row) noexcept nogil

@cython.locals(base_timestamp=longlong, at=longlong, delta=longlong, row=longlong, headers=longlong, start=longlong,
               header=longlong)
cdef long long _encode(HeldColumns columns, long long first, long long count, unsigned char* out) noexcept nogil
