"""A tiny Llama of random weights with a tokenizer and a chat template of its own, made on the spot."""

from __future__ import annotations

from pathlib import Path

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)
SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "what is two plus two and who wrote this",
    "answer yes or no to each of the questions 0 1 2 3 4 5 6 7 8 9",
]

TEXT = "the quick brown fox jumps over lazy dog what is two plus who wrote this answer yes or no"
WORDS = TEXT.split()


def some_prompts(n: int) -> list[str]:
    """Prompts of different words and lengths."""
    return [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 4 + i)) for i in range(1, n + 1)]


def write_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write config, tokenizer and safetensors into a folder; the same seed makes the same weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    raw.train_from_iterator(SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    )
    tokenizer.chat_template = CHAT
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.5,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data[2] *= 3.0  # so that answers come to an end
    model.generation_config.update(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return folder
