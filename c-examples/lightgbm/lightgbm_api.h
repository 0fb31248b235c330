/*
 * The functions of LightGBM's C interface that this example calls, as LightGBM 4 declares them in
 * LightGBM/c_api.h and LightGBM/meta.h. The Python package of LightGBM has the library, but not
 * these headers, which need C++ in part.
 *
 * Each function returns 0, or -1 with a message in LGBM_GetLastError.
 */
#ifndef LIGHTGBM_API_H
#define LIGHTGBM_API_H

#include <stdint.h>

#define LIGHTGBM_FLOAT32 0

typedef void *lightgbm_dataset_t;
typedef void *lightgbm_booster_t;

/* Reduces vectors of `n_bytes` bytes: each element of `output` becomes its reduction with that of
 * `input`. An element has `element_bytes` bytes. */
typedef void (*lightgbm_reducer_t)(const char *input, char *output, int element_bytes,
                                   int32_t n_bytes);

/* Reduces the vectors `input` of all machines. Machine i gets block i of the result, which begins
 * at `block_start[i]` and has `block_len[i]` bytes. LightGBM passes the reducer by reference. */
typedef void (*lightgbm_reduce_scatter_t)(char *input, int32_t n_input_bytes, int element_bytes,
                                          const int32_t *block_start, const int32_t *block_len,
                                          int n_blocks, char *output, int32_t n_output_bytes,
                                          const lightgbm_reducer_t *reducer);

/* Gives every machine the blocks of all machines. `input` is this machine's block, and may be a
 * part of `output`. */
typedef void (*lightgbm_all_gather_t)(char *input, int32_t n_input_bytes,
                                      const int32_t *block_start, const int32_t *block_len,
                                      int n_blocks, char *output, int32_t n_output_bytes);

const char *LGBM_GetLastError(void);

/* The network belongs to the thread that calls one of these functions. */
int LGBM_NetworkInit(const char *machines, int local_listen_port, int listen_time_out_minutes,
                     int n_machines);
int LGBM_NetworkInitWithFunctions(int n_machines, int rank, lightgbm_reduce_scatter_t reduce_scatter,
                                  lightgbm_all_gather_t all_gather);
int LGBM_NetworkFree(void);

int LGBM_DatasetCreateFromMat(const void *data, int data_type, int32_t n_rows, int32_t n_columns,
                              int is_row_major, const char *parameters,
                              lightgbm_dataset_t reference, lightgbm_dataset_t *out);
int LGBM_DatasetSetField(lightgbm_dataset_t dataset, const char *field_name, const void *data,
                         int n_elements, int data_type);
int LGBM_DatasetFree(lightgbm_dataset_t dataset);

int LGBM_BoosterCreate(lightgbm_dataset_t train_data, const char *parameters,
                       lightgbm_booster_t *out);
int LGBM_BoosterUpdateOneIter(lightgbm_booster_t booster, int *is_finished);
int LGBM_BoosterSaveModelToString(lightgbm_booster_t booster, int first_iteration, int n_iterations,
                                  int importance_type, int64_t capacity, int64_t *n_bytes,
                                  char *out);
int LGBM_BoosterFree(lightgbm_booster_t booster);

#endif
