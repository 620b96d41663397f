/* A CUDA device that has memory and computes nothing.

onnxruntime's CUDA provider finds a device, takes memory on it and launches kernels, which do nothing. So it places
nodes and copies weights as it does on a GPU, and no figure of a graph's output means anything. The functions that the
provider calls and that are not here are generated beside this file: each does nothing and says success.
*/
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define OUT_OF_MEMORY 2
#define EXPORT __attribute__((visibility("default")))

static const size_t TOTAL = (size_t)139 << 30;
static _Atomic size_t taken;

/* Device memory is counted, host memory that the device may read is not. */
struct Block {
    size_t counted;
    char pad[248];
};

static int take(void **out, size_t bytes, int counted) {
    struct Block *block;
    if (posix_memalign((void **)&block, 256, sizeof *block + bytes)) return OUT_OF_MEMORY;
    memset(block, 0, sizeof *block + bytes);
    block->counted = counted ? bytes : 0;
    taken += block->counted;
    *out = block + 1;
    return SUCCESS;
}

static int give(void *pointer) {
    if (!pointer) return SUCCESS;
    struct Block *block = (struct Block *)pointer - 1;
    taken -= block->counted;
    free(block);
    return SUCCESS;
}

EXPORT int cudaMalloc(void **out, size_t bytes) { return take(out, bytes, 1); }
EXPORT int cudaMallocFromPoolAsync(void **out, size_t bytes, void *pool, void *stream) { return take(out, bytes, 1); }
EXPORT int cudaMallocHost(void **out, size_t bytes) { return take(out, bytes, 0); }
EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned flags) { return take(out, bytes, 0); }
EXPORT int cudaFree(void *pointer) { return give(pointer); }
EXPORT int cudaFreeAsync(void *pointer, void *stream) { return give(pointer); }
EXPORT int cudaFreeHost(void *pointer) { return give(pointer); }

EXPORT int cudaMemGetInfo(size_t *unused, size_t *total) {
    *total = TOTAL;
    *unused = TOTAL - taken;
    return SUCCESS;
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    memcpy(to, from, bytes);
    return SUCCESS;
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    return cudaMemcpy(to, from, bytes, kind);
}

EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind, void *stream) {
    for (size_t row = 0; row < height; row++)
        memcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return SUCCESS;
}

EXPORT int cudaMemset(void *at, int value, size_t bytes) {
    memset(at, value, bytes);
    return SUCCESS;
}

EXPORT int cudaMemsetAsync(void *at, int value, size_t bytes, void *stream) { return cudaMemset(at, value, bytes); }

EXPORT int cudaPointerGetAttributes(void *attributes, const void *pointer) {
    memset(attributes, 0, 32);
    *(int *)attributes = 2; /* cudaMemoryTypeDevice */
    return SUCCESS;
}

static int one(void **out) { return take(out, 8, 0); }

EXPORT int cudaStreamCreate(void **stream) { return one(stream); }
EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return one(stream); }
EXPORT int cudaEventCreate(void **event) { return one(event); }
EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags) { return one(event); }
EXPORT int cublasCreate_v2(void **handle) { return one(handle); }
EXPORT int cublasLtCreate(void **handle) { return one(handle); }

EXPORT void *__cudaRegisterFatBinary(void *binary) {
    static char module[8];
    return module;
}

EXPORT int __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return SUCCESS;
}

static int number(int *out, int value) {
    *out = value;
    return SUCCESS;
}

/* A launch that is not begun is not made either. */
EXPORT unsigned __cudaPopCallConfiguration(void *grid, void *block, size_t *shared, void *stream) { return 1; }
EXPORT int cudaStreamIsCapturing(void *stream, int *status) { return number(status, 0); }
EXPORT int cudaGetDeviceCount(int *count) { return number(count, 1); }
EXPORT int cudaGetDevice(int *device) { return number(device, 0); }
EXPORT int cublasGetMathMode(void *handle, int *mode) { return number(mode, 0); }

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                                  size_t shared, unsigned flags) {
    return number(blocks, 1);
}

EXPORT int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds = 1;
    return SUCCESS;
}

EXPORT const char *cudaGetErrorName(int error) { return error ? "error" : "no error"; }
EXPORT const char *cudaGetErrorString(int error) { return cudaGetErrorName(error); }
EXPORT const char *cublasGetStatusName(int status) { return cudaGetErrorName(status); }
EXPORT const char *cublasGetStatusString(int status) { return cudaGetErrorName(status); }

/* The driver's own library serves the CUDA that the runtime is of. */
EXPORT int cuInit(unsigned flags) { return SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { return number(count, 1); }
EXPORT int cuDriverGetVersion(int *version) { return number(version, CUDA_VERSION); }
EXPORT int cudaDriverGetVersion(int *version) { return number(version, CUDA_VERSION); }
EXPORT int cudaRuntimeGetVersion(int *version) { return number(version, CUDA_VERSION); }

/* cudaDeviceProp of CUDA 13, by offsets (driver_types.h); the device pretends to be a Hopper. */
EXPORT int cudaGetDeviceProperties(char *properties, int device) {
    static const struct {
        int offset, value;
    } FIELDS[] = {
        {296, 49152}, /* sharedMemPerBlock */
        {304, 65536}, /* regsPerBlock */
        {308, 32},    /* warpSize */
        {320, 1024},  /* maxThreadsPerBlock */
        {324, 1024}, {328, 1024}, {332, 64},       /* maxThreadsDim */
        {336, 2147483647}, {340, 65535}, {344, 65535}, /* maxGridSize */
        {360, 9},      /* major */
        {384, 132},    /* multiProcessorCount */
        {604, 2048},   /* maxThreadsPerMultiProcessor */
        {624, 233472}, /* sharedMemPerMultiprocessor */
        {672, 232448}, /* sharedMemPerBlockOptin */
    };
    memset(properties, 0, 1008);
    strcpy(properties, "no device (stand-in)");
    memcpy(properties + 288, &TOTAL, sizeof TOTAL);
    for (size_t index = 0; index < sizeof FIELDS / sizeof *FIELDS; index++)
        memcpy(properties + FIELDS[index].offset, &FIELDS[index].value, sizeof(int));
    return SUCCESS;
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 1: return number(value, 1024);    /* threads of a block */
    case 8: return number(value, 49152);   /* shared memory of a block */
    case 10: return number(value, 32);     /* threads of a warp */
    case 16: return number(value, 132);    /* multiprocessors */
    case 39: return number(value, 2048);   /* threads of a multiprocessor */
    case 75: return number(value, 9);      /* compute capability, major */
    case 97: return number(value, 232448); /* shared memory of a block, by opting in */
    default: return number(value, 0);
    }
}
