/* The C API of QKVShare: read a text with a model, pack the KV cache as a CacheCard, go on from a card elsewhere.
 *
 * Sender:   qkv_model_load, qkv_session_create, qkv_session_prefill_text, qkv_session_pack_file
 * Receiver: qkv_model_load, qkv_session_create, qkv_card_open, qkv_session_restore, qkv_session_prefill_text,
 *           qkv_session_generate
 *
 * Errors. Every function that can fail returns a qkv_status and takes a qkv_error, which may be NULL and is filled in
 * any case: nothing is global, so the message belongs to the call. A failed call leaves its handles as they were unless
 * it says otherwise, and its outputs untouched. Where "may be NULL" is not said, NULL gives QKV_INVALID_ARGUMENT. No
 * C++ exception comes out; no callback may throw one.
 *
 * Ownership. Handles are freed by their own function (NULL is fine), in any order: a session keeps its model. Arrays
 * and strings that come out through a pointer to a pointer are the caller's, who gives them to qkv_free; `const`
 * pointers belong to the handle and live as long as it. What goes in is copied. Texts are UTF-8 and have a length;
 * texts that come out are also followed by a zero byte. Names and paths that go in end with a zero byte.
 *
 * Growth. A struct of options starts with its size and is filled by its qkv_..._default(&options, sizeof options);
 * structs that come out are passed with their size. So later versions can add fields at the end, and callers that were
 * compiled before stay valid. A pointer to options may be NULL: the defaults.
 *
 * Threads. Models and cards may be used by several threads at once; a session by one at a time, but for
 * qkv_session_cancel. Callbacks run on the calling thread, and may not use the session but to cancel it. */
#pragma once

/* NOLINTBEGIN(modernize-deprecated-headers,modernize-use-using,readability-identifier-naming): this is C. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QKV_API __attribute__((visibility("default")))
#else
#define QKV_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ---- */

/* Never renumbered; the same as qkvshare::StatusCode. */
typedef enum qkv_status {
  QKV_OK = 0,
  QKV_INVALID_ARGUMENT = 1,       /* the caller's input is wrong */
  QKV_NOT_FOUND = 2,              /* a file or an entry does not exist */
  QKV_IO = 3,                     /* reading or writing failed: disk full, permission */
  QKV_CORRUPT = 4,                /* a checksum, digest or format rule does not hold */
  QKV_MISMATCH = 5,               /* a valid card that does not fit this model or session */
  QKV_UNSUPPORTED = 6,            /* valid, but this version or this model cannot do it */
  QKV_OUT_OF_RANGE = 7,           /* too long, too large: the message gives needed and available; out of memory */
  QKV_CANCELLED = 8,              /* the caller asked to stop */
  QKV_NON_FINITE = 9,             /* NaN or Inf where a number is needed */
  QKV_INTERNAL = 10,              /* a bug here or in a library below */
  QKV_STATUS_LARGEST = 0x7FFFFFFF /* none: makes any number from 0 on a value of the type, as in the enums below */
} qkv_status;

#define QKV_ERROR_MESSAGE_BYTES 1024

typedef struct qkv_error {
  qkv_status status;
  /* One line that says what is wrong and what to do, cut where it is longer; empty when ok. */
  char message[QKV_ERROR_MESSAGE_BYTES];
} qkv_error;

/* "0.1.0", of the library that runs. */
QKV_API const char* qkv_version(void);
/* "corrupt" and so on, for logs; "unknown" for other numbers. */
QKV_API const char* qkv_status_name(qkv_status status);
/* Frees what a function gave to the caller. */
QKV_API void qkv_free(void* pointer);

/* Returns false to cancel what is running. data: as given with the function. */
typedef bool (*qkv_progress_fn)(void* data, size_t done, size_t total);
/* A piece of generated text, which may end inside a UTF-8 character. Returns false to stop. */
typedef bool (*qkv_text_fn)(void* data, const char* text, size_t text_bytes);

/* ---- Models ---- */

typedef struct qkv_model qkv_model;

typedef struct qkv_model_options {
  size_t struct_size;
  int32_t gpu_layers;       /* layers on a GPU, where llama.cpp was built for one; 0 */
  qkv_progress_fn progress; /* of 1000; may be NULL */
  void* progress_data;
} qkv_model_options;

QKV_API qkv_status qkv_model_options_default(qkv_model_options* options, size_t struct_size);

/* Loads a GGUF file, or a model by its name from `qkvshare models list` that has been downloaded. QKV_NOT_FOUND,
 * QKV_CORRUPT (llama.cpp cannot read it), QKV_UNSUPPORTED (recurrent, hybrid and encoder models), QKV_CANCELLED. */
QKV_API qkv_status qkv_model_load(const char* path, const qkv_model_options* options, qkv_model** model,
                                  qkv_error* error);
QKV_API void qkv_model_free(qkv_model* model);

typedef struct qkv_model_info {
  const char* name; /* for people; identity is the fingerprint */
  const char* architecture;
  const char* fingerprint;   /* of weights, tokenizer and hyper-parameters; 64 hexadecimal digits */
  int32_t vocab_size;        /* tokens */
  uint32_t training_context; /* tokens */
} qkv_model_info;

QKV_API qkv_status qkv_model_get_info(const qkv_model* model, qkv_model_info* info, size_t info_size, qkv_error* error);

/* Token ids as llama.cpp makes them for a prompt: special tokens in the text are recognized. add_special: BOS where the
 * model wants one; false for text that follows other text. An empty text may give none. QKV_INVALID_ARGUMENT: not
 * UTF-8, with the offset. */
QKV_API qkv_status qkv_tokenize(const qkv_model* model, const char* text, size_t text_bytes, bool add_special,
                                int32_t** tokens, size_t* token_count, qkv_error* error);

/* The bytes that the tokens stand for, special tokens written out, without the BOS that qkv_tokenize adds. They may
 * begin or end inside a UTF-8 character. */
QKV_API qkv_status qkv_detokenize(const qkv_model* model, const int32_t* tokens, size_t token_count, char** text,
                                  size_t* text_bytes, qkv_error* error);

typedef struct qkv_message {
  const char* role; /* "system", "user", "assistant" */
  const char* content;
} qkv_message;

/* A conversation by the model's chat template, with the start of the assistant's turn if add_generation_prompt.
 * QKV_UNSUPPORTED where there is no template, or it refuses the messages. */
QKV_API qkv_status qkv_chat_template(const qkv_model* model, const qkv_message* messages, size_t message_count,
                                     bool add_generation_prompt, char** text, size_t* text_bytes, qkv_error* error);

/* The user's next turn and the start of the assistant's, as they follow a conversation that was read before (a card's).
 * open_turn: where the conversation ends within the assistant's turn (text that was generated), its text so far, so
 * that the turn is ended first; else "". QKV_UNSUPPORTED where the template does not render turn after turn. */
QKV_API qkv_status qkv_chat_next_turn(const qkv_model* model, const char* user, size_t user_bytes,
                                      const char* open_turn, size_t open_turn_bytes, char** text, size_t* text_bytes,
                                      qkv_error* error);

/* ---- Sessions: a context of llama.cpp with one sequence of tokens ---- */

typedef struct qkv_session qkv_session;

typedef struct qkv_session_options {
  size_t struct_size;
  uint32_t context;      /* tokens; 0: the model's training context */
  uint32_t batch;        /* tokens of one decode call, 1 to 65536; 512 */
  int32_t threads;       /* up to 512; 0: one a core */
  float rope_freq_base;  /* 0: from the model */
  float rope_freq_scale; /* 0: from the model */
  /* Of the context's own cache: "f16", "bf16", "q8_0" or "q4_0"; "f16". Cards go from and to every type. */
  const char* cache_type_k;
  const char* cache_type_v;
  bool flash_attention; /* needed by quantized V, by keep_attention and by fused; true */
  /* Cards may be attached (qkv_session_inject), where a self-test at the start passes: for receivers; false. */
  bool fused;
  /* Of context: tokens that such cards will hold, for which no memory is set aside; 0. Where cards have to be restored
   * after all, memory is set aside for the whole context. */
  uint32_t card_tokens;
} qkv_session_options;

QKV_API qkv_status qkv_session_options_default(qkv_session_options* options, size_t struct_size);

/* QKV_OUT_OF_RANGE where there is no memory for the context; QKV_UNSUPPORTED where the model's cache is none that a
 * card can hold. */
QKV_API qkv_status qkv_session_create(const qkv_model* model, const qkv_session_options* options, qkv_session** session,
                                      qkv_error* error);
QKV_API void qkv_session_free(qkv_session* session);

typedef struct qkv_session_info {
  size_t tokens;          /* in the cache, and of attached cards */
  size_t restored_tokens; /* of these, first ones that were restored from cards */
  size_t context;         /* tokens that it may hold */
  int32_t threads;
  /* In effect; names as in qkv_session_options. */
  const char* cache_type_k;
  const char* cache_type_v;
  bool flash_attention;
  size_t attached_tokens;   /* first ones that attached cards hold: not in the cache, but read where they lie */
  bool fused;               /* whether cards can be attached */
  const char* fused_reason; /* why not; "" where they can be */
} qkv_session_info;

QKV_API qkv_status qkv_session_get_info(const qkv_session* session, qkv_session_info* info, size_t info_size,
                                        qkv_error* error);
/* All tokens of the session. */
QKV_API qkv_status qkv_session_get_tokens(const qkv_session* session, int32_t** tokens, size_t* token_count,
                                          qkv_error* error);

typedef struct qkv_prefill_options {
  size_t struct_size;
  qkv_progress_fn progress; /* tokens done and in all, after each batch; may be NULL */
  void* progress_data;
  /* Keeps queries of the last 1,024 tokens, every fourth, from here on (those of generated tokens too), as far as the
   * session has flash attention: policies other than "uniform" need them, and keys are rounded by them. 4 bytes a
   * value, some 10 to 50 MB. false drops what was kept. true */
  bool keep_attention;
} qkv_prefill_options;

QKV_API qkv_status qkv_prefill_options_default(qkv_prefill_options* options, size_t struct_size);

/* Reads tokens (at least one) after those that are there. QKV_OUT_OF_RANGE before anything is read where the context is
 * too short. QKV_CANCELLED leaves what has been read in the session: see qkv_session_truncate. */
QKV_API qkv_status qkv_session_prefill(qkv_session* session, const int32_t* tokens, size_t token_count,
                                       const qkv_prefill_options* options, qkv_error* error);
/* Reads text after the tokens that are there, as if all were one text: a word or a character that is cut at the seam
 * becomes the tokens that the whole text has, so that some of the last tokens may be read again. After
 * qkv_session_restore an empty text reads the last token again, which makes the session ready to generate. */
QKV_API qkv_status qkv_session_prefill_text(qkv_session* session, const char* text, size_t text_bytes,
                                            const qkv_prefill_options* options, qkv_error* error);

/* Keeps the first token_count tokens. QKV_INVALID_ARGUMENT where there are fewer. */
QKV_API qkv_status qkv_session_truncate(qkv_session* session, size_t token_count, qkv_error* error);

/* Stops the prefill or generation that is running, or else the next one. From any thread or signal handler. */
QKV_API void qkv_session_cancel(qkv_session* session);

typedef struct qkv_generate_options {
  size_t struct_size;
  size_t predict; /* tokens at most; 128 */
  /* As llama.cpp's samplers; temp <= 0: the most likely token. 0.8, 40, 0.95, 0.05. */
  float temp;
  int32_t top_k;
  float top_p;
  float min_p;
  uint32_t seed;       /* 4294967295: a random one */
  qkv_text_fn on_text; /* the text of each token as it comes; may be NULL */
  void* text_data;
} qkv_generate_options;

QKV_API qkv_status qkv_generate_options_default(qkv_generate_options* options, size_t struct_size);

typedef enum qkv_stop { QKV_STOP_END = 0, QKV_STOP_LENGTH = 1, QKV_STOP_CONTEXT = 2, QKV_STOP_CANCELLED = 3 } qkv_stop;

typedef struct qkv_generation {
  char* text; /* the caller's: qkv_free */
  size_t text_bytes;
  int32_t* tokens; /* without the end token; the caller's: qkv_free */
  size_t token_count;
  qkv_stop stop;
  int32_t end_token; /* the token that ended it, or -1 */
} qkv_generation;

/* Continues after the session's last token, which must have been read (not only restored). Afterwards the session holds
 * all that was generated, the end token included; but where the context is full, or it was cancelled while the last
 * token was read, not that one. Being cancelled is no error: what was generated is given. QKV_NON_FINITE where the
 * model's output is not numbers. */
QKV_API qkv_status qkv_session_generate(qkv_session* session, const qkv_generate_options* options,
                                        qkv_generation* generation, size_t generation_size, qkv_error* error);

/* ---- Packing a session's tokens as a card ---- */

typedef struct qkv_card qkv_card;

/* An agent that will use the card. */
typedef struct qkv_reader {
  const char* agent;
  uint32_t distance; /* hops from the sender, 1 for the next agent */
  const char* role;  /* of the messages that it will use, or NULL: it uses all; several roles are several readers */
} qkv_reader;

typedef struct qkv_pack_options {
  size_t struct_size;
  double bits;        /* average of a key or value channel, 2 to 16 (exact); 4 */
  uint64_t max_bytes; /* of the whole card, instead of bits; 0: by bits */
  /* "uniform"; after a prefill with keep_attention also "local" (what the sender looks at), "topology" (and what is
   * known of the receivers: readers, anchor_cards), and their controls "random" and "inverted". docs/policies.md says
   * what they do. "uniform" */
  const char* policy;
  const char* agent; /* the sender's name, kept in the card; "agent" */
  /* The conversation that the tokens are of, so that the card names its turns; may be NULL. */
  const qkv_message* messages;
  size_t message_count;
  /* Path of a static profile (`qkvshare calibrate`), or NULL: measured on the tokens. A delta card has the profile of
   * the card that it continues, and takes no other. */
  const char* profile;
  /* What follows is as the flags of `qkvshare pack`. What the policy would pass over is refused, but for readers: every
   * policy keeps them in the card, for later agents. */
  const char* levels;        /* that the policy may choose, as "K4V2,K4V4,exact"; NULL: all */
  size_t protect_last;       /* last tokens that stay exact; 0 */
  const char* layer_bits;    /* layers that get wider or narrower codes, as "0-2:k=1,v=1;20:v=-1"; may be NULL */
  const char* features;      /* what the policy looks at, but confidence and next_entropy; "default" */
  double alpha;              /* of topology: share of the sender's own importance, 0 to 1; 0.5 */
  uint64_t seed;             /* of random; 1 */
  const char* control_of;    /* of random and inverted: "local" or "topology"; NULL: "local" */
  const qkv_reader* readers; /* may be NULL */
  size_t reader_count;
  /* Cards of earlier receivers of this context, for their anchors; none that continues another. May be NULL. */
  const qkv_card* const* anchor_cards;
  size_t anchor_card_count;
  /* Of keys of 2 and 4 bits: "queries" (those that keep_attention kept see least of the errors), "nearest", or "auto":
   * queries, where there are some. NULL: "auto". The card says which it was; one without such keys says "nearest". */
  const char* rounding;
} qkv_pack_options;

QKV_API qkv_status qkv_pack_options_default(qkv_pack_options* options, size_t struct_size);

/* Packs all tokens, or those after attached cards: then the card is a delta card, which names the last of them as the
 * one that it continues. The session stays as it is. The file is written whole or not at all, with mode 0600, over a
 * card of that name but over nothing else: it can be turned back into the text. QKV_INVALID_ARGUMENT (empty session,
 * bits out of range, a policy that has no choice, options that contradict each other, rounding "queries" where none
 * were kept, a file there that is no card), QKV_OUT_OF_RANGE (max_bytes is too small), QKV_MISMATCH (a profile of
 * another model), QKV_UNSUPPORTED (the session holds restored tokens, which must not be quantized twice), QKV_IO. */
QKV_API qkv_status qkv_session_pack_file(const qkv_session* session, const qkv_pack_options* options, const char* path,
                                         qkv_error* error);
QKV_API qkv_status qkv_session_pack_memory(const qkv_session* session, const qkv_pack_options* options, uint8_t** card,
                                           size_t* card_bytes, qkv_error* error);

/* ---- Cards ---- */

/* Maps a file and checks header, checksums and all fields. QKV_NOT_FOUND, QKV_IO, QKV_CORRUPT (the rule that is
 * broken), QKV_UNSUPPORTED (of later software). */
QKV_API qkv_status qkv_card_open(const char* path, qkv_card** card, qkv_error* error);
/* The same with bytes in memory, which are copied. */
QKV_API qkv_status qkv_card_from_bytes(const uint8_t* bytes, size_t byte_count, qkv_card** card, qkv_error* error);
QKV_API void qkv_card_free(qkv_card* card);

/* Also checks every digest and every value: for cards that come from elsewhere. */
QKV_API qkv_status qkv_card_verify(const qkv_card* card, qkv_error* error);

typedef struct qkv_card_info {
  size_t tokens;
  size_t layers;
  const char* content_id;        /* 64 hexadecimal digits */
  const char* model_fingerprint; /* 64 hexadecimal digits: qkv_model_info.fingerprint of the only model that it fits */
  const char* model_name;        /* what the sender says: this and the following are for people */
  const char* agent;
  const char* policy;
  const char* info_json; /* all that the card says of itself in words: segments, time, writer... */
  double code_bits;      /* average of a key or value channel: codes alone */
  double total_bits;     /* the same with everything */
  size_t card_bytes;
  size_t f16_bytes; /* of the same rows as FP16 */
} qkv_card_info;

QKV_API qkv_status qkv_card_get_info(const qkv_card* card, qkv_card_info* info, size_t info_size, qkv_error* error);

/* [tokens] each; the card's. */
QKV_API qkv_status qkv_card_get_token_ids(const qkv_card* card, const int32_t** token_ids, size_t* token_count,
                                          qkv_error* error);
QKV_API qkv_status qkv_card_get_positions(const qkv_card* card, const int32_t** positions, size_t* token_count,
                                          qkv_error* error);

typedef struct qkv_layer_shape {
  uint32_t kv_heads;
  uint32_t key_dim;
  uint32_t value_dim;
} qkv_layer_shape;

/* Layers may differ. */
QKV_API qkv_status qkv_card_get_layer_shape(const qkv_card* card, size_t layer, qkv_layer_shape* shape,
                                            qkv_error* error);

typedef enum qkv_side { QKV_KEYS = 0, QKV_VALUES = 1, QKV_SIDE_LARGEST = 0x7FFFFFFF } qkv_side;
typedef enum qkv_dtype { QKV_F16 = 0, QKV_F32 = 1, QKV_DTYPE_LARGEST = 0x7FFFFFFF } qkv_dtype;

/* Code bits of each token's keys or values in one layer, 16 being exact: bits [bit_count], which must be the number of
 * tokens. */
QKV_API qkv_status qkv_card_get_token_bits(const qkv_card* card, size_t layer, qkv_side side, uint8_t* bits,
                                           size_t bit_count, qkv_error* error);

/* Dequantizes one side of one layer: rows [token_count, kv_heads, dim] of the first token_count tokens, keys with their
 * position (RoPE) applied. row_bytes: of the whole array; must be exactly what it takes. QKV_CORRUPT. */
QKV_API qkv_status qkv_card_unpack(const qkv_card* card, size_t layer, qkv_side side, size_t token_count,
                                   qkv_dtype dtype, void* rows, size_t row_bytes, qkv_error* error);

/* Replaces the session's tokens by the card's first token_count tokens (0: all). Everything is checked before the
 * session is changed. QKV_MISMATCH (another model, RoPE or shapes), QKV_OUT_OF_RANGE (the context is too short),
 * QKV_UNSUPPORTED (a card that continues another, or whose positions do not count from 0), QKV_CORRUPT. */
QKV_API qkv_status qkv_session_restore(qkv_session* session, const qkv_card* card, size_t token_count,
                                       qkv_error* error);

/* How a context gets cards' tokens. */
typedef enum qkv_inject {
  QKV_INJECT_AUTO = 0,    /* fused where that is possible, else restore */
  QKV_INJECT_FUSED = 1,   /* attached: attention reads the packed rows where they lie, and nothing is unpacked */
  QKV_INJECT_RESTORE = 2, /* dequantized into the context's cache */
  QKV_INJECT_LARGEST = 0x7FFFFFFF
} qkv_inject;

typedef struct qkv_injection {
  qkv_inject mode;    /* in effect: QKV_INJECT_FUSED or QKV_INJECT_RESTORE */
  size_t tokens;      /* where the cards end: the position of what follows */
  const char* reason; /* why that mode; the handle's, until its next injection */
} qkv_injection;

/* Replaces the session's tokens by those of several cards, each where the one before ends: its keys are moved there if
 * it was made elsewhere. A delta card comes after the one that it continues; several may continue one. token_count: the
 * first ones of all, 0: all. Attached cards stay open while they are needed, also if they are freed. Everything is
 * checked before the session is changed. As qkv_session_restore; QKV_UNSUPPORTED also for QKV_INJECT_FUSED where
 * qkv_session_info says why it cannot be. injection may be NULL. */
QKV_API qkv_status qkv_session_inject(qkv_session* session, const qkv_card* const* cards, size_t card_count,
                                      size_t token_count, qkv_inject mode, qkv_injection* injection,
                                      size_t injection_size, qkv_error* error);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-deprecated-headers,modernize-use-using,readability-identifier-naming) */
