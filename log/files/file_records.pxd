cdef class SharedFile:
    cdef public object file
    cdef long long _count
    cdef object _lock
    cpdef retain(self)
    cpdef release(self)

cdef class FileRecords:
    cdef object _file_system, _open_lock
    cdef public SharedFile _shared
    cdef bint _closed, _broken
    cdef public object path
    cdef public long long size
    cpdef long long append(self, data) except -1
    cpdef slice(self, long long position, long long size)
