/*
 * The text that the model learns: simple English sentences from a small grammar, in lower-case
 * letters.
 *
 * A language model learns it step by step: the letters, the words, and the order of the words. The
 * hardest part is that a verb agrees with its subject ("the sailor counts", "two sailors count").
 */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* A token is a character: the letters a to z, the space, the comma, the full stop, and the line
 * feed. */
#define TEXT_TOKENS 30

/*
 * Writes `count` tokens of sequence `index` of step `step`. They depend on the arguments only, so
 * that any rank can make any sequence, also after a restart.
 */
void text_sequence(uint64_t seed, uint64_t step, uint64_t index, uint8_t *tokens, size_t count);

#endif
