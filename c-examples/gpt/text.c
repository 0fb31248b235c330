/*
 * Generates the training text from a small grammar. See text.h.
 */
#include "text.h"

#include "../digits_training/rng.h"

#include <string.h>

/* The tokens in the order of their numbers. */
static const char characters[] = "abcdefghijklmnopqrstuvwxyz ,.\n";

static const char *const nouns[] = {"sailor", "baker", "child", "farmer", "painter", "teacher", "fox", "raven"};
static const char *const plurals[] = {"sailors", "bakers", "children", "farmers", "painters", "teachers", "foxes", "ravens"};
static const char *const verbs[] = {"count", "find", "carry", "draw", "lose", "watch"};
static const char *const singular_verbs[] = {"counts", "finds", "carries", "draws", "loses", "watches"};
static const char *const objects[] = {"stones", "apples", "letters", "lamps", "boats", "clouds"};
static const char *const qualities[] = {"old", "young", "quiet", "tall", "happy", "careful"};
static const char *const numbers[] = {"two", "three", "seven", "ten", "many"};
static const char *const places[] = {"near the river", "in the garden", "under the bridge", "on the hill", "by the sea"};
static const char *const times[] = {"in the morning", "at night", "every day", "after the rain"};

#define LENGTH(list) (sizeof(list) / sizeof((list)[0]))

/* Writes a text from left to right. It ends where there is no more room. */
typedef struct writer {
    uint8_t *tokens;
    size_t count, room;
} writer_t;

static void write_text(writer_t *writer, const char *text)
{
    for (; *text != '\0' && writer->count < writer->room; text++) {
        writer->tokens[writer->count++] = (uint8_t)(strchr(characters, *text) - characters);
    }
}

static void write_word(writer_t *writer, const char *word)
{
    write_text(writer, word);
    write_text(writer, " ");
}

static const char *choose_word(rng_t *rng, const char *const *list, size_t length)
{
    return list[rng_next(rng) % length];
}

static int draw_chance(rng_t *rng, uint64_t percent)
{
    return rng_next(rng) % 100 < percent;
}

/* For instance "at night, two quiet foxes carry apples near the river." */
static void write_sentence(writer_t *writer, rng_t *rng)
{
    int is_singular = draw_chance(rng, 50);
    if (draw_chance(rng, 25)) {
        write_text(writer, choose_word(rng, times, LENGTH(times)));
        write_text(writer, ", ");
    }
    write_word(writer, is_singular ? "the" : choose_word(rng, numbers, LENGTH(numbers)));
    if (draw_chance(rng, 40)) {
        write_word(writer, choose_word(rng, qualities, LENGTH(qualities)));
    }
    size_t noun = (size_t)(rng_next(rng) % LENGTH(nouns));
    size_t verb = (size_t)(rng_next(rng) % LENGTH(verbs));
    write_word(writer, is_singular ? nouns[noun] : plurals[noun]);
    write_word(writer, is_singular ? singular_verbs[verb] : verbs[verb]);
    write_text(writer, choose_word(rng, objects, LENGTH(objects)));
    if (draw_chance(rng, 50)) {
        write_text(writer, " ");
        write_text(writer, choose_word(rng, places, LENGTH(places)));
    }
    write_text(writer, draw_chance(rng, 20) ? ".\n" : ". ");
}

void text_sequence(uint64_t seed, uint64_t step, uint64_t index, uint8_t *tokens, size_t count)
{
    rng_t rng = {seed};
    rng.state = rng_next(&rng) + step;
    rng.state = rng_next(&rng) + index;
    writer_t writer = {tokens, 0, count};
    while (writer.count < writer.room) {
        write_sentence(&writer, &rng);
    }
}
