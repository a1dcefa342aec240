"""Makes a Llama of two layers with random weights, its tokenizer and a chat template; no hub is asked.

Rule: runs in vLLM's environment. Weights are drawn from a fixed seed, so every engine has the same, and wide
enough apart that another prompt gives another text: a wrong KV block shows in the answer.

KV per token: 2 layers x 2 (K and V) x 2 heads x 64 x 2 bytes = 1024 bytes; per block of 32 tokens 32 KiB.
"""

import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # type: ignore[import-not-found]
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

VOCABULARY_TOKENS = 512
CONTEXT_TOKENS = 16384
WEIGHT_SPREAD = 0.15

SENTENCES = (
    "A router names the pod that holds the longest prefix of a prompt.",
    "The user asks, the assistant answers, the system sets the tone and a tool lends a hand.",
    "Blocks of keys and values travel from one engine to another over the network.",
    "Decode begins when prefill has computed the first token of the answer.",
    "zero one two three four five six seven eight nine ten 0 1 2 3 4 5 6 7 8 9",
)

TURN = "<|im_start|>{{ message['role'] }}\n"
TEXT = (
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] or [] %}{{ part.get('text', '') }}{% endfor %}{% endif %}"
)
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}" + TURN + TEXT + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 512 tokens: every text and every token id is valid."""
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(SENTENCES * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def model(vocabulary_tokens: int) -> LlamaForCausalLM:
    """The network, in bfloat16."""
    torch.manual_seed(20)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary_tokens,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=CONTEXT_TOKENS,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            tie_word_embeddings=False,
        )
    )
    for weights in llama.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=WEIGHT_SPREAD)
    return llama.to(torch.bfloat16)


def main(place: Path) -> None:
    """Write both into `place`; config.json, which says that all is there, comes last."""
    made = place.with_name(place.name + ".part")
    words = tokenizer()
    words.save_pretrained(made)
    model(len(words)).save_pretrained(made)
    made.rename(place)
    print(f"made {place}: {len(words)} tokens in the vocabulary")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
