#pragma once
#include <cuda_runtime_api.h>
#define NCCL_MAJOR 2
#define NCCL_MINOR 27
#define NCCL_PATCH 3
#define NCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 27, 3)
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_CONFIG_INITIALIZER {}
typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow* ncclWindow_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { int blocking, splitShare; const char *netName, *commName; } ncclConfig_t;
enum ncclResult_t {
  ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage,
  ncclRemoteError, ncclInProgress
};
enum ncclDataType_t {
  ncclInt8, ncclChar, ncclUint8, ncclInt32, ncclInt, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclHalf,
  ncclFloat32, ncclFloat, ncclFloat64, ncclDouble, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2
};
enum ncclRedOp_t { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg };
const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);
#define CALLED(name) template <class... Arguments> ncclResult_t name(Arguments&&...)

CALLED(ncclCommAbort);
CALLED(ncclCommDeregister);
CALLED(ncclCommDestroy);
CALLED(ncclCommFinalize);
CALLED(ncclCommGetAsyncError);
CALLED(ncclCommInitRank);
CALLED(ncclCommInitRankConfig);
CALLED(ncclCommInitRankScalable);
CALLED(ncclCommRegister);
CALLED(ncclCommSplit);
CALLED(ncclRedOpCreatePreMulSum);
CALLED(ncclRedOpDestroy);
