cimport cython

cdef class OsFile:
    cdef int _fd
    cdef public object path

    @cython.locals(size=longlong, written=longlong, count=longlong)
    cpdef write_at(self, data, long long position)
