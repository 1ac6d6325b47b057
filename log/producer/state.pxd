cimport cython
cimport tidelog.protocol.compiled.words as words

cdef class BatchMetadata:
    cdef readonly long long last_sequence, last_offset, offset_delta, timestamp

cdef class ProducerEntry:
    cdef public long long producer_id, producer_epoch, coordinator_epoch, current_txn_first_offset, last_timestamp
    cdef public object batches
    cdef public double touched_ms

    @cython.locals(last=BatchMetadata, last_sequence=longlong, last_offset=longlong, offset_delta=longlong)
    cdef store(self, unsigned char* data, long long at)

cdef class ProducerStateManager:
    cdef object _file_system, _directory, _time
    cdef object _expiration_ms
    cdef public dict _ongoing, _unreplicated
    cdef public dict producers
    cdef public list known
    cdef public long long end_offset, _first_unreplicated, _last_snapshot_offset

    @cython.locals(entry=ProducerEntry, last=BatchMetadata, known=BatchMetadata)
    cpdef find_if_next(self, long long producer_id, long long epoch, long long first_sequence, long long last_sequence)

    @cython.locals(batch=BatchMetadata)
    cpdef advance(self, ProducerEntry entry, long long last_sequence, long long first_offset, long long last_offset,
                  long long timestamp)

    cpdef bint on_high_watermark(self, long long offset) except -1

@cython.locals(entry=ProducerEntry, at=longlong, data=bytearray)
cdef bytearray _snapshot_of(ProducerStateManager state)
