/* QKVShare in a program that has its own llama_model and llama_context: its sequences go on from cards, and its tokens
 * become cards. Conventions are those of qkvshare.h. libqkvshare and the program must use the same libllama (the CMake
 * package has it as qkvshare::llama).
 *
 *   qkv_model_borrow(model, path, &m, &error);
 *   qkv_attention_create(m, &params, &attention, &error);       // sets params.cb_eval
 *   context = llama_init_from_model(model, params);
 *   qkv_attention_bind(attention, context, &error);
 *   qkv_attention_inject(attention, 0, cards, 1, QKV_INJECT_AUTO, &done, sizeof done, &error);
 *   qkv_attention_decode(attention, &batch, &result, &error);   // in place of llama_decode, from done.tokens on
 *
 * Contexts: one cache and one stream (kv_unified = true where n_seq_max > 1), and swa_full = true for models with
 * sliding windows. Fused attention also wants flash attention, an F16 cache, and both on the CPU; else cards are
 * restored. LoRA adapters and control vectors change what a card holds, but are no part of a model's identity: use
 * cards only under those that they were made with.
 *
 * Threads. A qkv_attention belongs to one context and is used by one thread at a time; models and cards are shared. */
#pragma once

#include "qkvshare/qkvshare.h"

/* NOLINTBEGIN(modernize-use-using,readability-identifier-naming): this is C. */
struct llama_batch;
struct llama_context;
struct llama_context_params;
struct llama_model;

#ifdef __cplusplus
extern "C" {
#endif

/* A model that the program has loaded from the GGUF at `path`, which says what it is; nothing is loaded again. It must
 * stay loaded until this one and all that was made with it are freed. llama.cpp's log stays the program's. As
 * qkv_model_load; QKV_MISMATCH where the file is another one. */
QKV_API qkv_status qkv_model_borrow(struct llama_model* llama, const char* path, qkv_model** model, qkv_error* error);

/* Attention over cards in one context. */
typedef struct qkv_attention qkv_attention;

/* Sets cb_eval and cb_eval_user_data of the parameters that the context will be made with. A callback that is there is
 * called too, for every node as llama.cpp made it. The same parameters may serve further contexts for as long as this
 * qkv_attention is there. */
QKV_API qkv_status qkv_attention_create(const qkv_model* model, struct llama_context_params* params,
                                        qkv_attention** attention, qkv_error* error);
/* After llama_free of the context, which calls it. */
QKV_API void qkv_attention_free(qkv_attention* attention);

/* Takes the context that was made with these parameters: decodes some tokens in it to find out what it is like and
 * whether attention over cards agrees with llama.cpp's own, and leaves it empty. Afterwards the other functions can be
 * used; where it fails, the context is a plain one. QKV_INVALID_ARGUMENT: the context is not empty, of another model,
 * or made with other parameters, or there is one already. QKV_UNSUPPORTED says which setting cards cannot be used with.
 */
QKV_API qkv_status qkv_attention_bind(qkv_attention* attention, struct llama_context* context, qkv_error* error);

typedef struct qkv_attention_info {
  bool fused;         /* whether cards can be attached; restoring them works all the same */
  const char* reason; /* why not; "" where they can be */
} qkv_attention_info;

QKV_API qkv_status qkv_attention_get_info(const qkv_attention* attention, qkv_attention_info* info, size_t info_size,
                                          qkv_error* error);

#define QKV_NEXT UINT32_MAX

/* The first tokens of a card, at a place of the sequence. */
typedef struct qkv_placed_card {
  const qkv_card* card;
  uint32_t offset; /* position of its first token, or QKV_NEXT: where the card before ends, 0 for the first */
  uint32_t tokens; /* 0: all, or where a delta card follows at QKV_NEXT, as many as that one continues */
} qkv_placed_card;

/* Puts cards, in the order of their places, into a sequence that has no tokens and no cards. What follows is decoded
 * after the last of them, from injection->tokens on. A delta card comes after the one that it continues, of which there
 * must be just the tokens that it was made on. Everything is checked before the context is changed.
 * QKV_INVALID_ARGUMENT (not empty, overlapping places), QKV_MISMATCH (another model, RoPE or shapes), QKV_OUT_OF_RANGE
 * (no room to restore them), QKV_UNSUPPORTED (why cards cannot be attached, for QKV_INJECT_FUSED; a card that cannot be
 * moved to its place), QKV_CORRUPT. injection may be NULL.
 *
 * While cards are attached all decoding goes through qkv_attention_decode: logits of llama_decode itself are NaN. */
QKV_API qkv_status qkv_attention_inject(qkv_attention* attention, int32_t sequence, const qkv_placed_card* cards,
                                        size_t card_count, qkv_inject mode, qkv_injection* injection,
                                        size_t injection_size, qkv_error* error);
/* Empties a sequence: takes its cards away, and its tokens, which continue them. */
QKV_API qkv_status qkv_attention_detach(qkv_attention* attention, int32_t sequence, qkv_error* error);
/* Gives an empty sequence the cards and tokens of another, as llama_memory_seq_cp does with tokens alone: nothing is
 * copied in memory, and the two go on independently. QKV_INVALID_ARGUMENT where `to` is not empty. */
QKV_API qkv_status qkv_attention_copy(qkv_attention* attention, int32_t from, int32_t to, qkv_error* error);

/* llama_decode over the attached cards; without any it is llama_decode. result: what that returned, or -1 where it was
 * not called; may be NULL. Positions and sequences may be left out of the batch, as for llama_decode: positions then
 * follow the cards. QKV_OUT_OF_RANGE (the context is full), QKV_CANCELLED, QKV_UNSUPPORTED and QKV_INTERNAL (attention
 * did not go over the cards: the batch's tokens are not kept). QKV_INVALID_ARGUMENT before anything is decoded:
 *
 * - More than n_ubatch tokens; a sequence that is not there; a token before the end of its sequence's cards, or of
 *   several sequences of which one has cards.
 * - A sequence whose tokens were not decoded after its cards, such as those that llama_memory_seq_cp gave it. In models
 *   with sliding windows this is not seen in a sequence without cards.
 * - After llama_decode was called while cards were attached, until all tokens that may be of it have been removed, in
 *   every sequence (llama_memory_seq_rm). */
QKV_API qkv_status qkv_attention_decode(qkv_attention* attention, const struct llama_batch* batch, int32_t* result,
                                        qkv_error* error);

/* Packs a sequence as qkv_session_pack_file does, with policy "uniform" and keys rounded to the nearest level, since
 * there are no queries here (rounding "queries" is QKV_INVALID_ARGUMENT). tokens: those that were decoded into it, all
 * that come after the attached cards, from the first position on; where cards are attached the result is a delta card.
 * QKV_INVALID_ARGUMENT where the sequence has other positions than these, QKV_UNSUPPORTED where there are gaps between
 * the attached cards. Tokens that were restored are not to be
 * packed again; of a sequence that llama_memory_seq_cp gave them this is not known. */
QKV_API qkv_status qkv_attention_pack_file(const qkv_attention* attention, int32_t sequence, const int32_t* tokens,
                                           size_t token_count, const qkv_pack_options* options, const char* path,
                                           qkv_error* error);
QKV_API qkv_status qkv_attention_pack_memory(const qkv_attention* attention, int32_t sequence, const int32_t* tokens,
                                             size_t token_count, const qkv_pack_options* options, uint8_t** card,
                                             size_t* card_bytes, qkv_error* error);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-use-using,readability-identifier-naming) */
