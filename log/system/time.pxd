cdef class SystemTime:
    cpdef milliseconds(self)
    cpdef monotonic_ms(self)
