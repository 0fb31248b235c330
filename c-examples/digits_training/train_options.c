/*
 * Parses the command line of train_digits and survive. A wrong argument ends the process with
 * status 2.
 */
#include "train_options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A build can define the path of the file. The default is relative to c-examples. */
#ifndef DIGITS_CSV
#define DIGITS_CSV "digits_training/data/digits.csv"
#endif

static const char help[] =
    "Trains a classifier of hand-written digits on all ranks of a job.\n"
    "\n"
    "    distrun --nproc-per-node 4 train_digits [options]\n"
    "\n"
    "  --epochs N              passes over the 1500 training rows (30)\n"
    "  --batch N               rows of a global batch, all ranks together (60)\n"
    "  --hidden N              hidden units (64)\n"
    "  --lr X                  learning rate (0.05)\n"
    "  --seed N                seed of the weights and of the order of rows (1)\n"
    "  --data PATH             the data (" DIGITS_CSV ")\n"
    "  --backend NAME          what carries the messages: native, mpi, ... (native)\n"
    "  --no-sync               do not exchange gradients: shows that the ranks then drift apart\n"
    "  --sleep-ms-per-epoch N  pause after every epoch (0)\n"
    "  --help                  this text\n"
    "\n"
    "The result does not depend on the number of ranks. Exit status: 0 all well; 1 the ranks'\n"
    "weights differ; 2 a wrong argument or no data; 3 a libdist call failed.\n";

static void fail_usage(const char *message, const char *argument)
{
    fprintf(stderr, "train_digits: %s: %s (--help shows the options)\n", argument, message);
    exit(2);
}

static double parse_number(const char *option, const char *text, double low, double high)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(value >= low && value <= high)) {
        fprintf(stderr, "train_digits: %s takes a number from %g to %g, not \"%s\"\n", option, low, high, text);
        exit(2);
    }
    return value;
}

static uint32_t parse_count(const char *option, const char *text, uint32_t low, uint32_t high)
{
    double value = parse_number(option, text, low, high);
    if (value != floor(value)) {
        fail_usage("takes a whole number", option);
    }
    return (uint32_t)value;
}

/* Sets the option to the value. Returns 0 if there is no such option with a value. */
static int set_option_value(train_options_t *options, const char *option, const char *value)
{
    if (strcmp(option, "--epochs") == 0) {
        options->epochs = parse_count(option, value, 1, 1000000000);
    } else if (strcmp(option, "--batch") == 0) {
        options->batch = parse_count(option, value, 1, 1500);
    } else if (strcmp(option, "--hidden") == 0) {
        options->hidden = parse_count(option, value, 1, 65536);
    } else if (strcmp(option, "--lr") == 0) {
        options->learning_rate = (float)parse_number(option, value, 1e-9, 1e3);
    } else if (strcmp(option, "--seed") == 0) {
        options->seed = parse_count(option, value, 0, UINT32_MAX);
    } else if (strcmp(option, "--sleep-ms-per-epoch") == 0) {
        options->sleep_ms_per_epoch = parse_count(option, value, 0, 3600000);
    } else if (strcmp(option, "--backend") == 0) {
        options->backend = value;
    } else if (strcmp(option, "--data") == 0) {
        options->data = value;
    } else {
        return 0;
    }
    return 1;
}

train_options_t train_options_parse(int argc, char **argv)
{
    train_options_t options = {DIGITS_CSV, 30, 60, 64, 0.05f, 1, 1, 0, NULL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--no-sync") == 0) {
            options.sync = 0;
        } else if (i + 1 < argc && set_option_value(&options, argv[i], argv[i + 1])) {
            i++;
        } else {
            fail_usage("unknown option, or its value is missing", argv[i]);
        }
    }
    return options;
}
