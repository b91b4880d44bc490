"""Hugging Face Trainer: six optimizer steps of two micro-batches, with checkpoints."""

import tempfile

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tests.frameworks.stalling import Samples

config = GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2)
with tempfile.TemporaryDirectory() as output:
    arguments = TrainingArguments(
        output,
        per_device_train_batch_size=4,
        max_steps=6,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_steps=3,
        logging_steps=2,
        disable_tqdm=True,
    )
    Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Samples()).train()
