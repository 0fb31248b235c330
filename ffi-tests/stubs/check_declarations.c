/*
 * Compile-time assertions about the declarations of CUDA and NCCL. The build compiles them with
 * the handwritten declarations and, if the real headers are installed, with those. So both agree
 * in everything that libdist uses. The file contains no code.
 *
 * Macros of cuda.h give functions the suffix _v2; this file uses the exported names.
 */
#include "stub_nccl.h"
#include "stub_cuda.h"

#include <stddef.h>

#define IS(name, value) _Static_assert((long long)(name) == (value), #name)
#define AT(field, offset) _Static_assert(offsetof(ncclConfig_t, field) == (offset), #field)
/* Asserts the exact type of a function. */
#define TYPE(name, type) _Static_assert(_Generic(&name, type: 1, default: 0), #name)

_Static_assert(sizeof(ncclUniqueId) == 128, "ncclUniqueId");
_Static_assert(sizeof(ncclRedOp_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclResult_t) == 4, "enums");
/* The handwritten structure is the one of 2.27; later ones are longer. */
_Static_assert(sizeof(ncclConfig_t) >= 72, "ncclConfig_t");
AT(size, 0);
AT(magic, 8);
AT(version, 12);
AT(blocking, 16);
AT(cgaClusterSize, 20);
AT(minCTAs, 24);
AT(maxCTAs, 28);
AT(netName, 32);
AT(splitShare, 40);
AT(trafficClass, 44);
AT(commName, 48);
AT(collnetEnable, 56);
AT(CTAPolicy, 60);
AT(shrinkShare, 64);
AT(nvlsCTAs, 68);

/* The lengths that the library of each version accepts, as far as headers show them. */
#if NCCL_VERSION_CODE < 22800
_Static_assert(sizeof(ncclConfig_t) == 72, "2.27");
#elif NCCL_VERSION_CODE >= 23000 && NCCL_VERSION_CODE < 23100
_Static_assert(sizeof(ncclConfig_t) == 96, "2.30");
#elif NCCL_VERSION_CODE >= 23100 && NCCL_VERSION_CODE < 23300
_Static_assert(sizeof(ncclConfig_t) == 120, "2.31");
#endif

IS(NCCL_UNIQUE_ID_BYTES, 128);
IS(NCCL_API_MAGIC, 0xcafebeef);
IS(NCCL_CONFIG_UNDEF_INT, -2147483648LL);
IS(NCCL_SPLIT_NOCOLOR, -1);
IS(NCCL_WIN_DEFAULT, 0);
IS(NCCL_WIN_COLL_SYMMETRIC, 1);
IS(NCCL_SHRINK_DEFAULT, 0);
IS(NCCL_SHRINK_ABORT, 1);
IS(ncclSuccess, 0);
IS(ncclUnhandledCudaError, 1);
IS(ncclSystemError, 2);
IS(ncclInternalError, 3);
IS(ncclInvalidArgument, 4);
IS(ncclInvalidUsage, 5);
IS(ncclRemoteError, 6);
IS(ncclInProgress, 7);
IS(ncclSum, 0);
IS(ncclProd, 1);
IS(ncclMax, 2);
IS(ncclMin, 3);
IS(ncclAvg, 4);
IS(ncclNumOps, 5);
IS(ncclMaxRedOp, 0x7fffffff);
IS(ncclInt8, 0);
IS(ncclUint8, 1);
IS(ncclInt32, 2);
IS(ncclUint32, 3);
IS(ncclInt64, 4);
IS(ncclUint64, 5);
IS(ncclFloat16, 6);
IS(ncclFloat32, 7);
IS(ncclFloat64, 8);
IS(ncclBfloat16, 9);
IS(ncclFloat8e4m3, 10);
IS(ncclFloat8e5m2, 11);
IS(ncclNumTypes, 12);
IS(ncclScalarDevice, 0);
IS(ncclScalarHostImmediate, 1);

TYPE(ncclGetVersion, ncclResult_t(*)(int *));
TYPE(ncclGetErrorString, const char *(*)(ncclResult_t));
TYPE(ncclGetLastError, const char *(*)(ncclComm_t));
TYPE(ncclGetUniqueId, ncclResult_t(*)(ncclUniqueId *));
TYPE(ncclCommInitRank, ncclResult_t(*)(ncclComm_t *, int, ncclUniqueId, int));
TYPE(ncclCommInitRankConfig, ncclResult_t(*)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));
TYPE(ncclCommFinalize, ncclResult_t(*)(ncclComm_t));
TYPE(ncclCommDestroy, ncclResult_t(*)(ncclComm_t));
TYPE(ncclCommAbort, ncclResult_t(*)(ncclComm_t));
TYPE(ncclCommSplit, ncclResult_t(*)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *));
TYPE(ncclCommShrink, ncclResult_t(*)(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int));
TYPE(ncclCommGetAsyncError, ncclResult_t(*)(ncclComm_t, ncclResult_t *));
TYPE(ncclCommCount, ncclResult_t(*)(ncclComm_t, int *));
TYPE(ncclCommCuDevice, ncclResult_t(*)(ncclComm_t, int *));
TYPE(ncclCommUserRank, ncclResult_t(*)(ncclComm_t, int *));
TYPE(ncclMemAlloc, ncclResult_t(*)(void **, size_t));
TYPE(ncclMemFree, ncclResult_t(*)(void *));
TYPE(ncclCommRegister, ncclResult_t(*)(ncclComm_t, void *, size_t, void **));
TYPE(ncclCommDeregister, ncclResult_t(*)(ncclComm_t, void *));
TYPE(ncclCommWindowRegister, ncclResult_t(*)(ncclComm_t, void *, size_t, ncclWindow_t *, int));
TYPE(ncclCommWindowDeregister, ncclResult_t(*)(ncclComm_t, ncclWindow_t));
TYPE(ncclRedOpCreatePreMulSum,
     ncclResult_t(*)(ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t));
TYPE(ncclRedOpDestroy, ncclResult_t(*)(ncclRedOp_t, ncclComm_t));
TYPE(ncclReduce, ncclResult_t(*)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, CUstream));
TYPE(ncclBroadcast, ncclResult_t(*)(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream));
TYPE(ncclAllReduce, ncclResult_t(*)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream));
TYPE(ncclReduceScatter,
     ncclResult_t(*)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream));
TYPE(ncclAllGather, ncclResult_t(*)(const void *, void *, size_t, ncclDataType_t, ncclComm_t, CUstream));
TYPE(ncclSend, ncclResult_t(*)(const void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream));
TYPE(ncclRecv, ncclResult_t(*)(void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream));
TYPE(ncclGroupStart, ncclResult_t(*)(void));
TYPE(ncclGroupEnd, ncclResult_t(*)(void));

/* The CUDA driver. */
_Static_assert(sizeof(CUdevice) == 4 && sizeof(CUdeviceptr) == 8 && sizeof(CUuuid) == 16, "CUDA's types");
IS(CUDA_SUCCESS, 0);
IS(CUDA_ERROR_INVALID_VALUE, 1);
IS(CUDA_ERROR_OUT_OF_MEMORY, 2);
IS(CUDA_ERROR_NOT_INITIALIZED, 3);
IS(CUDA_ERROR_DEINITIALIZED, 4);
IS(CUDA_ERROR_NO_DEVICE, 100);
IS(CUDA_ERROR_INVALID_DEVICE, 101);
IS(CUDA_ERROR_INVALID_CONTEXT, 201);
IS(CUDA_ERROR_INVALID_HANDLE, 400);
IS(CUDA_ERROR_NOT_READY, 600);
IS(CUDA_ERROR_ILLEGAL_ADDRESS, 700);
IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709);
IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712);
IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713);
IS(CUDA_ERROR_LAUNCH_FAILED, 719);
IS(CUDA_ERROR_NOT_PERMITTED, 800);
IS(CUDA_ERROR_NOT_SUPPORTED, 801);
IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900);
IS(CUDA_ERROR_UNKNOWN, 999);
IS(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16);
IS(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18);
IS(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 19);
IS(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20);
IS(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33);
IS(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34);
IS(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40);
IS(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41);
IS(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50);
IS(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75);
IS(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76);
IS(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 78);
IS(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91);
IS(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99);
IS(CU_POINTER_ATTRIBUTE_CONTEXT, 1);
IS(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2);
IS(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 3);
IS(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4);
IS(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7);
IS(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8);
IS(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9);
IS(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11);
IS(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12);
IS(CU_POINTER_ATTRIBUTE_MAPPED, 13);
IS(CU_STREAM_CAPTURE_STATUS_NONE, 0);
IS(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1);
IS(CU_MEMORYTYPE_HOST, 1);
IS(CU_MEMORYTYPE_DEVICE, 2);
IS(CU_STREAM_DEFAULT, 0x0);
IS(CU_STREAM_NON_BLOCKING, 0x1);
IS(CU_EVENT_DEFAULT, 0x0);
IS(CU_EVENT_BLOCKING_SYNC, 0x1);
IS(CU_EVENT_DISABLE_TIMING, 0x2);
IS(CU_MEMHOSTALLOC_PORTABLE, 0x01);
IS(CU_MEMHOSTALLOC_DEVICEMAP, 0x02);
IS(CU_MEMHOSTALLOC_WRITECOMBINED, 0x04);
IS(CU_MEMHOSTREGISTER_PORTABLE, 0x01);
IS(CU_MEMHOSTREGISTER_DEVICEMAP, 0x02);

TYPE(cuInit, CUresult(*)(unsigned int));
TYPE(cuDriverGetVersion, CUresult(*)(int *));
TYPE(cuGetErrorName, CUresult(*)(CUresult, const char **));
TYPE(cuGetErrorString, CUresult(*)(CUresult, const char **));
TYPE(cuDeviceGetCount, CUresult(*)(int *));
TYPE(cuDeviceGet, CUresult(*)(CUdevice *, int));
TYPE(cuDeviceGetUuid_v2, CUresult(*)(CUuuid *, CUdevice));
TYPE(cuDeviceGetName, CUresult(*)(char *, int, CUdevice));
TYPE(cuDeviceGetAttribute, CUresult(*)(int *, CUdevice_attribute, CUdevice));
TYPE(cuDevicePrimaryCtxRetain, CUresult(*)(CUcontext *, CUdevice));
TYPE(cuDevicePrimaryCtxRelease_v2, CUresult(*)(CUdevice));
TYPE(cuCtxGetCurrent, CUresult(*)(CUcontext *));
TYPE(cuCtxSetCurrent, CUresult(*)(CUcontext));
TYPE(cuCtxPushCurrent_v2, CUresult(*)(CUcontext));
TYPE(cuCtxPopCurrent_v2, CUresult(*)(CUcontext *));
TYPE(cuCtxGetDevice, CUresult(*)(CUdevice *));
TYPE(cuCtxSynchronize, CUresult(*)(void));
TYPE(cuCtxGetStreamPriorityRange, CUresult(*)(int *, int *));
TYPE(cuMemAlloc_v2, CUresult(*)(CUdeviceptr *, size_t));
TYPE(cuMemFree_v2, CUresult(*)(CUdeviceptr));
TYPE(cuMemHostAlloc, CUresult(*)(void **, size_t, unsigned int));
TYPE(cuMemFreeHost, CUresult(*)(void *));
TYPE(cuMemHostRegister_v2, CUresult(*)(void *, size_t, unsigned int));
TYPE(cuMemHostUnregister, CUresult(*)(void *));
TYPE(cuPointerGetAttribute, CUresult(*)(void *, CUpointer_attribute, CUdeviceptr));
TYPE(cuPointerGetAttributes, CUresult(*)(unsigned int, CUpointer_attribute *, void **, CUdeviceptr));
TYPE(cuMemcpyAsync, CUresult(*)(CUdeviceptr, CUdeviceptr, size_t, CUstream));
TYPE(cuMemcpyHtoDAsync_v2, CUresult(*)(CUdeviceptr, const void *, size_t, CUstream));
TYPE(cuMemcpyDtoHAsync_v2, CUresult(*)(void *, CUdeviceptr, size_t, CUstream));
TYPE(cuMemcpyDtoDAsync_v2, CUresult(*)(CUdeviceptr, CUdeviceptr, size_t, CUstream));
TYPE(cuMemsetD8Async, CUresult(*)(CUdeviceptr, unsigned char, size_t, CUstream));
TYPE(cuStreamCreate, CUresult(*)(CUstream *, unsigned int));
TYPE(cuStreamCreateWithPriority, CUresult(*)(CUstream *, unsigned int, int));
TYPE(cuStreamDestroy_v2, CUresult(*)(CUstream));
TYPE(cuStreamQuery, CUresult(*)(CUstream));
TYPE(cuStreamSynchronize, CUresult(*)(CUstream));
TYPE(cuStreamWaitEvent, CUresult(*)(CUstream, CUevent, unsigned int));
TYPE(cuStreamGetCtx, CUresult(*)(CUstream, CUcontext *));
TYPE(cuStreamGetPriority, CUresult(*)(CUstream, int *));
TYPE(cuStreamIsCapturing, CUresult(*)(CUstream, CUstreamCaptureStatus *));
TYPE(cuLaunchHostFunc, CUresult(*)(CUstream, CUhostFn, void *));
TYPE(cuEventCreate, CUresult(*)(CUevent *, unsigned int));
TYPE(cuEventRecord, CUresult(*)(CUevent, CUstream));
TYPE(cuEventQuery, CUresult(*)(CUevent));
TYPE(cuEventSynchronize, CUresult(*)(CUevent));
TYPE(cuEventElapsedTime, CUresult(*)(float *, CUevent, CUevent));
TYPE(cuEventDestroy_v2, CUresult(*)(CUevent));
