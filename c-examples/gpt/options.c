/*
 * Parses the command line of gpt. A wrong argument ends the process with status 2.
 */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Trains a transformer with the shape of GPT-2 on generated text, on all ranks of a job.\n"
    "\n"
    "    distrun --nproc-per-node 4 ./gpt [options]\n"
    "\n"
    "  --layers N             layers of the model (2)\n"
    "  --heads N              attention heads of a layer (4)\n"
    "  --width N              numbers for each position, a multiple of --heads (64)\n"
    "  --context N            characters of a sequence (32)\n"
    "  --batch N              sequences of a step, all ranks together (16)\n"
    "  --accumulate N         computes the sequences of a rank in N parts and communicates once (1)\n"
    "  --steps N              steps (50)\n"
    "  --lr X                 learning rate (0.003)\n"
    "  --clip X               largest norm of the gradients (1)\n"
    "  --zero N               0: each rank has all states of the optimizer; 1: each has a share of\n"
    "                         them; 2: each has a share of the states and of the gradients (0)\n"
    "  --copies N             ranks that have the same share, with --zero 1 (1; 2 with --survive)\n"
    "  --seed N               seed of the first weights and of the text (1)\n"
    "  --survive              goes on when ranks die; needs distrun --on-failure continue\n"
    "  --die-at N             a rank kills itself in the middle of step N (0: none)\n"
    "  --die-rank N           the rank that does (0)\n"
    "  --checkpoint FILE      rank 0 writes FILE, at the end too\n"
    "  --checkpoint-every N   after each N steps (100)\n"
    "  --resume               continues from the checkpoint if the file exists\n"
    "  --log-every N          prints the loss of every Nth step (10)\n"
    "  --help                 this text\n"
    "\n"
    "The losses do not depend on the number of ranks, except for rounding. Exit status: 0 success;\n"
    "1 the weights of the ranks differ; 2 a wrong option or checkpoint; 3 a call of libdist failed.\n";

/* An option with an integer or a real value. The other pointer is NULL. */
typedef struct number_option {
    const char *name;
    uint64_t *integer_value;
    double *real_value;
    double low, high;
} number_option_t;

static void fail_usage(const char *message, const char *argument)
{
    fprintf(stderr, "gpt: %s: %s (--help shows the options)\n", argument, message);
    exit(2);
}

static void parse_number(const number_option_t *option, const char *text)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    int is_number = end != text && *end == '\0' && errno == 0;
    int is_valid = option->real_value != NULL || value == floor(value);
    if (!is_number || !is_valid || !(value >= option->low && value <= option->high)) {
        fprintf(stderr, "gpt: %s takes a %snumber from %g to %g, not \"%s\"\n", option->name,
                option->integer_value != NULL ? "whole " : "", option->low, option->high, text);
        exit(2);
    }
    if (option->integer_value != NULL) {
        *option->integer_value = (uint64_t)value;
    } else {
        *option->real_value = value;
    }
}

/* Sets the option to the value. Returns 0 if there is no such option with a value. */
static int set_option_value(gpt_options_t *o, const char *name, const char *value)
{
    const number_option_t numbers[] = {
        {"--layers", &o->layers, NULL, 1, 1000},
        {"--heads", &o->heads, NULL, 1, 1000},
        {"--width", &o->width, NULL, 1, 65536},
        {"--context", &o->context, NULL, 1, 65536},
        {"--batch", &o->batch, NULL, 1, 1e6},
        {"--accumulate", &o->accumulate, NULL, 1, 1e6},
        {"--steps", &o->steps, NULL, 1, 1e9},
        {"--lr", NULL, &o->learning_rate, 1e-9, 1e3},
        {"--clip", NULL, &o->clip, 1e-9, 1e9},
        {"--zero", &o->zero, NULL, 0, 2},
        {"--copies", &o->copies, NULL, 1, 1e6},
        {"--seed", &o->seed, NULL, 0, 4294967295.0},
        {"--die-at", &o->die_at, NULL, 0, 1e9},
        {"--die-rank", &o->die_rank, NULL, 0, 1e6},
        {"--checkpoint-every", &o->checkpoint_every, NULL, 1, 1e9},
        {"--log-every", &o->log_every, NULL, 1, 1e9},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(name, numbers[i].name) == 0) {
            parse_number(&numbers[i], value);
            return 1;
        }
    }
    if (strcmp(name, "--checkpoint") == 0) {
        o->checkpoint = value;
        return 1;
    }
    return 0;
}

/* Sets an option without a value. Returns 0 if there is no such option. */
static int set_flag(gpt_options_t *o, const char *name)
{
    if (strcmp(name, "--survive") == 0) {
        o->survive = 1;
    } else if (strcmp(name, "--resume") == 0) {
        o->resume = 1;
    } else {
        return 0;
    }
    return 1;
}

static void check_combinations(const gpt_options_t *o)
{
    if (o->width % o->heads != 0) {
        fail_usage("is not a multiple of --heads", "--width");
    }
    if (o->resume && o->checkpoint == NULL) {
        fail_usage("needs --checkpoint FILE", "--resume");
    }
    if (o->zero != 1 && o->copies > 0) {
        fail_usage("needs --zero 1", "--copies");
    }
    if (o->survive && o->copies == 1) {
        fail_usage("is at least 2 with --survive: the states of a rank die with the only copy", "--copies");
    }
    if (o->zero == 2 && o->survive) {
        fail_usage("has no --survive, since no rank has another one's gradients", "--zero 2");
    }
    if (o->zero == 2 && o->accumulate > 1) {
        fail_usage("has no --accumulate, since gradients stay for one bucket only", "--zero 2");
    }
}

gpt_options_t gpt_options_parse(int argc, char **argv)
{
    gpt_options_t options = {0};
    options.layers = 2;
    options.heads = 4;
    options.width = 64;
    options.context = 32;
    options.batch = 16;
    options.accumulate = 1;
    options.steps = 50;
    options.learning_rate = 0.003;
    options.clip = 1.0;
    options.seed = 1;
    options.checkpoint_every = 100;
    options.log_every = 10;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            exit(0);
        }
        if (set_flag(&options, argv[i])) {
            continue;
        }
        if (i + 1 < argc && set_option_value(&options, argv[i], argv[i + 1])) {
            i++;
        } else {
            fail_usage("unknown option, or its value is missing", argv[i]);
        }
    }
    check_combinations(&options);
    if (options.copies == 0) {
        options.copies = options.survive ? 2 : 1; /* with two copies, the death of a rank loses no states */
    }
    return options;
}
