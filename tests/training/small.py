"""A decoder small enough to train a step of in a test."""

from workers.models.qwen3_tts.code2wav_sizes import Code2WavSizes
from workers.training import sizes

DECODER = Code2WavSizes.from_config(
    {
        **sizes.DECODER,
        "codebook_dim": 32,
        "decoder_dim": 32,
        "hidden_size": 32,
        "head_dim": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "latent_dim": 32,
        "num_hidden_layers": 2,
        "num_quantizers": sizes.CODEBOOKS,
        "codebook_size": 64,
    }
)
