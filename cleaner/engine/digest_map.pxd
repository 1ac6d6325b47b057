cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long BUCKET_BYTES, BUCKET_WORDS, DIRTY_ORDINALS, ENTRIES_PER_BUCKET, LOOKUPS, MD5, PROBES, SIZE_COUNTER
cdef long long _PREFETCH_DISTANCE, _LOW_VALUES, _HIGH_VALUES, _DIGEST_WORDS, _KEY_COLUMNS
cdef unsigned long long _SIP_0, _SIP_1, _SIP_2, _SIP_3, _MD5_A, _MD5_B, _MD5_C, _MD5_D
cdef bytes _SHIFTS, _SINES
cdef const unsigned char* _MD5_SHIFTS
cdef const unsigned char* _MD5_SINES

@cython.locals(held=words.Held, rows=words.Held, hidden=words.Held, scratch=words.Held, found=words.Held)
cpdef hash_keys(buffer, keys, long long count, long long algorithm, secret, digests)

@cython.locals(rows=words.Held, held=words.Held, clean=words.Held, dirty=words.Held, counted=words.Held,
               first=longlong, end=longlong, done=longlong)
cpdef put_block(digests, span, table, bits, long long limit, counters)

@cython.locals(rows=words.Held, held=words.Held, marked=words.Held, counted=words.Held)
cpdef look_up_block(digests, long long count, table, bits, long long bias, counters)

@cython.locals(held=words.Held, rows=words.Held, first=longlong, end=longlong, found=longlong)
cpdef copy_entries(table, span, digests)

@cython.locals(rows=words.Held, target=words.Held, begins=words.Held, partitions=longlong)
cpdef partition_digests(digests, long long count, partitioned, starts)

cdef unsigned long long _rotate(unsigned long long word, int bits) noexcept nogil
cdef (unsigned long long, unsigned long long, unsigned long long, unsigned long long) _sip_round(
    unsigned long long v0, unsigned long long v1, unsigned long long v2, unsigned long long v3) noexcept nogil
cdef (unsigned long long, unsigned long long, unsigned long long, unsigned long long) _sip_absorb(
    unsigned long long v0, unsigned long long v1, unsigned long long v2, unsigned long long v3,
    unsigned long long word) noexcept nogil
cdef (unsigned long long, unsigned long long, unsigned long long, unsigned long long) _sip_finish(
    unsigned long long v0, unsigned long long v1, unsigned long long v2, unsigned long long v3) noexcept nogil

@cython.locals(v0=ulonglong, v1=ulonglong, v2=ulonglong, v3=ulonglong, tail=ulonglong, low=ulonglong, end=longlong)
cdef (unsigned long long, unsigned long long) _siphash(
    const unsigned char* data, long long position, long long size, unsigned long long first,
    unsigned long long second) noexcept nogil

@cython.locals(index=longlong, key=longlong, row=longlong, low=ulonglong, high=ulonglong)
cdef void _hash_by_siphash(
    const unsigned char* data, long long* keys, long long count, unsigned long long first, unsigned long long second,
    unsigned long long* digests) noexcept nogil

@cython.locals(first=ulonglong, second=ulonglong, third=ulonglong, fourth=ulonglong, step=int, mixed=ulonglong,
               number=longlong, total=ulonglong, shift=int, mask=ulonglong)
cdef (unsigned long long, unsigned long long, unsigned long long, unsigned long long) _md5_block(
    const unsigned char* data, long long at, unsigned long long a, unsigned long long b, unsigned long long c,
    unsigned long long d) noexcept nogil

@cython.locals(a=ulonglong, b=ulonglong, c=ulonglong, d=ulonglong, rest=longlong, block=longlong, end=longlong,
               at=longlong)
cdef (unsigned long long, unsigned long long) _md5(
    const unsigned char* data, long long position, long long size, unsigned char* scratch) noexcept nogil

@cython.locals(index=longlong, key=longlong, row=longlong, low=ulonglong, high=ulonglong)
cdef void _hash_by_md5(
    const unsigned char* data, long long* keys, long long count, unsigned char* scratch,
    unsigned long long* digests) noexcept nogil

cdef unsigned long long _bucket(unsigned long long first, unsigned long long buckets) noexcept nogil

@cython.locals(at=longlong, high=longlong)
cdef long long _value(const unsigned char* cells, long long bucket, long long entry) noexcept nogil

@cython.locals(at=longlong)
cdef void _set_value(unsigned char* cells, long long bucket, long long entry, long long value) noexcept nogil

@cython.locals(bucket=longlong, probes=longlong, entry=longlong, cell=longlong)
cdef (long long, long long, long long) _find(
    const unsigned long long* table, const unsigned char* cells, long long buckets, unsigned long long first,
    unsigned long long second) noexcept nogil

cdef void _supersede(long long ordinal, unsigned char* clean, unsigned char* dirty) noexcept nogil

@cython.locals(size=longlong, all_probes=longlong, index=longlong, ahead=longlong, row=longlong, ordinal=longlong,
               bucket=longlong, entry=longlong, probes=longlong, value=longlong, cell=longlong)
cdef long long _put(
    unsigned long long* digests, long long start, long long end, unsigned long long* table, unsigned char* cells,
    long long buckets, unsigned char* clean, unsigned char* dirty, long long limit, long long* counters) noexcept nogil

@cython.locals(all_probes=longlong, index=longlong, ahead=longlong, row=longlong, bucket=longlong, entry=longlong,
               probes=longlong, bit=longlong)
cdef void _look_up(
    unsigned long long* digests, long long count, const unsigned long long* table, const unsigned char* cells,
    long long buckets, unsigned char* bits, long long bias, long long* counters) noexcept nogil

@cython.locals(found=longlong, bucket=longlong, entry=longlong, value=longlong, cell=longlong, row=longlong)
cdef long long _entries(
    const unsigned long long* table, const unsigned char* cells, long long start, long long end,
    unsigned long long* digests) noexcept nogil

@cython.locals(shift=int, number=longlong, index=longlong, row=longlong, cell=longlong)
cdef void _partition(
    unsigned long long* digests, long long count, unsigned long long* partitioned, long long* starts,
    long long partitions) noexcept nogil

cdef long long _top_bits(unsigned long long word, int shift) noexcept nogil
