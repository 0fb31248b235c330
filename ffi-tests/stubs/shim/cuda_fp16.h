/* nccl.h includes this header of CUDA, and uses nothing of it in C. */
