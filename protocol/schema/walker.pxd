cimport cython
cimport tidelog.protocol.compiled.words as words

cdef int _INT32, _INT64, _INT16, _INT8, _BOOL, _UINT16, _UINT32, _FLOAT64, _UUID
cdef int _STRING, _BYTES, _RECORDS, _ARRAY, _STRUCT, _LAST_FIXED
cdef long long _UUID_BYTES, _FIRST_BYTES, _LARGEST_SPARE, _MAX_SPARES, _COPY_BELOW, _LONGEST_STRING, _MAX_TAGGED
cdef object _FRESH_LIST, _new_list
cdef list _SPARES

cdef class FieldLayout:
    cdef int kind
    cdef bint is_nullable, is_flexible
    cdef long long size, tag, smallest_item
    cdef Py_ssize_t slot
    cdef object default
    cdef FieldLayout item
    cdef Layout fields

cdef class Layout:
    cdef object cls
    cdef bint is_flexible
    cdef tuple plain, tagged, absent

cdef dict _PROTOTYPES

@cython.locals(prototype=Layout, field=FieldLayout)
cpdef blank(cls)

cdef class Walker:
    cdef object _message, _decoder, _encoder, _version
    cdef Layout _layout

    @cython.locals(reader=_Reader, held=words.Held)
    cpdef decode(self, view, long long position, long long elements=*)

    cpdef list encode(self, message)

    cpdef list encode_frame(self, message, long long correlation_id, long long header_bytes)

    @cython.locals(writer=_Writer, start=longlong, size=longlong, total=longlong)
    cdef list _encode(self, message, long long correlation_id, long long header_bytes)

cdef class _Reader:
    cdef const unsigned char* data
    cdef long long size, position, left
    cdef object view

@cython.locals(field=FieldLayout)
cdef object _read_struct(_Reader reader, Layout layout)

@cython.locals(kind=int, count=longlong, start=longlong)
cdef object _read_field(_Reader reader, FieldLayout field)

@cython.locals(at=longlong, number=longlong)
cdef object _read_fixed(_Reader reader, int kind, long long size)

@cython.locals(at=longlong)
cdef long long _read_signed(_Reader reader, long long size) except? -9

@cython.locals(at=longlong, size=longlong, value=ulonglong, byte=ulonglong, shift=int)
cdef long long _read_unsigned(_Reader reader) except? -9

@cython.locals(elements=list, layout=Layout, item=FieldLayout, _=longlong)
cdef list _read_array(_Reader reader, FieldLayout field, long long count)

@cython.locals(count=longlong, tag=longlong, size=longlong, end=longlong, field=FieldLayout, _=longlong)
cdef void _read_tagged(_Reader reader, Layout layout, target) except *

cdef class _Writer:
    cdef bytearray buffer
    cdef unsigned char* data
    cdef long long size, capacity
    cdef list parts

@cython.locals(more=longlong)
cdef void _reserve(_Writer writer, long long size) except *

cdef void _put_head(unsigned char* data, long long size, long long correlation_id, long long header_bytes) noexcept

@cython.locals(field=FieldLayout)
cdef void _write_struct(_Writer writer, Layout layout, value) except *

@cython.locals(kind=int)
cdef void _write_field(_Writer writer, FieldLayout field, value) except *

cdef void _write_integer(unsigned char* data, long long at, int kind, long long number) except *

@cython.locals(at=longlong)
cdef void _write_fixed(_Writer writer, int kind, long long size, value) except *

cdef void _check_range(long long number, long long lowest, long long highest) except *

@cython.locals(held=words.Held)
cdef void _put_bytes(unsigned char* data, long long at, piece) except *

@cython.locals(held=words.Held, size=longlong)
cdef void _write_bytes(_Writer writer, piece) except *

@cython.locals(at=longlong)
cdef void _write_unsigned(_Writer writer, unsigned long long number) except *

cdef void _write_length(_Writer writer, FieldLayout field, long long count) except *

cdef void _write_text(_Writer writer, FieldLayout field, text) except *

cdef void _write_nested(_Writer writer, FieldLayout field, value) except *

@cython.locals(layout=Layout, item=FieldLayout)
cdef void _write_array(_Writer writer, FieldLayout field, elements) except *

@cython.locals(size=longlong)
cdef void _write_records(_Writer writer, FieldLayout field, records) except *

@cython.locals(field=FieldLayout, inner=_Writer)
cdef void _write_tagged(_Writer writer, Layout layout, value) except *

cdef bint _differs(content, FieldLayout field) except -1
