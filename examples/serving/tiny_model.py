"""Makes a chat model of a few megabytes with random weights, where no hub can be reached: `tiny_model.py FOLDER`.

It says nothing sensible, but it is loaded, tokenised, batched and streamed like any other: enough to try a service
with. Needs transformers and torch. A folder that has a model already is left as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
UNKNOWN = "<|unknown|>"
SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Five hundred words of its own; it understands no others."""
    words = [UNKNOWN, *SPECIAL, *(f"oar{number}" for number in range(500))]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=UNKNOWN,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=SPECIAL[1:],
        chat_template=TEMPLATE,
    )


def main(folder: Path) -> None:
    if (folder / "config.json").exists():
        return
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 tiny_model.py FOLDER")
    main(Path(sys.argv[1]))
