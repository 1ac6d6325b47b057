cimport cython
from tidelog.broker.replica.fetching.fetch_session cimport FetchContext, FetchTarget
from tidelog.protocol.schema.walker cimport blank

cdef long long _READ_COMMITTED, _LAST_VERSION_WITH_HARD_LIMIT
cdef long long _FIRST_VERSION_WITH_ZSTD, _FIRST_WITH_RACKS, _NO_EPOCH
cdef object _COMMITTED, _HIGH_WATERMARK, _NO_TOPICS

cdef class ReadParams:
    cdef readonly long long version, max_bytes, min_bytes
    cdef readonly bint is_incremental
    cdef readonly object isolation, guard, find_nearer

cdef class ReadResult:
    cdef readonly list results, partitions
    cdef readonly long long total_bytes
    cdef readonly bint must_answer
    cdef readonly object proof

    cpdef bint is_enough(self, long long min_bytes) except -1

@cython.locals(params=ReadParams, reading=PartitionRead, read=ReadResult, fetch_context=FetchContext, targets=list)
cpdef handle(broker, context, request)

@cython.locals(topics=list, count=longlong)
cpdef bint names_many(request) except -1

@cython.locals(max_bytes=longlong, params=ReadParams)
cpdef ReadParams read_params(broker, context, request, FetchContext fetch_context)

cdef class PartitionRead:
    cdef object _replica_manager, _proof
    cdef ReadParams _params
    cdef list _results, _partitions
    cdef long long _limit, _total
    cdef bint _must_answer, _in_turn
    cdef readonly bint is_unopened

    cpdef ReadResult result(self)

    @cython.locals(params=ReadParams, results=list, partitions=list, target=FetchTarget, limit=longlong, total=longlong,
                   size=longlong, must_answer=bint, one_message=bint)
    cpdef add(self, list targets)

@cython.locals(epoch=longlong, committed=bint)
cdef read_partition(partition, FetchTarget target, ReadParams params, long long limit, bint one_message,
                    bint by_follower=*)

cpdef build_response(FetchContext context, list results)

@cython.locals(target=FetchTarget)
cpdef add_results(response, list results)
