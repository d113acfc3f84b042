/* Opens a card and prints what it holds. Usage: card_facts CARD */
#include <qkvshare/qkvshare.h>
#include <stdio.h>

int main(int argc, char** argv) {
  qkv_error error;
  qkv_card* card = NULL;
  qkv_card_info info;
  qkv_layer_shape shape;
  if (argc != 2) {
    fprintf(stderr, "usage: card_facts CARD\n");
    return 2;
  }
  if (qkv_card_open(argv[1], &card, &error) != QKV_OK || qkv_card_verify(card, &error) != QKV_OK ||
      qkv_card_get_info(card, &info, sizeof info, &error) != QKV_OK ||
      qkv_card_get_layer_shape(card, 0, &shape, &error) != QKV_OK) {
    fprintf(stderr, "error (%s): %s\n", qkv_status_name(error.status), error.message);
    qkv_card_free(card);
    return 1;
  }
  printf("card %.12s of %s by %s\n", info.content_id, info.model_name, info.agent);
  printf("%zu tokens, %zu layers of %u KV heads of %u and %u\n", info.tokens, info.layers, (unsigned)shape.kv_heads,
         (unsigned)shape.key_dim, (unsigned)shape.value_dim);
  printf("%zu bytes, %.2f bits a channel with everything\n", info.card_bytes, info.total_bits);
  qkv_card_free(card);
  return 0;
}
