"""Small, untrained, unmodified models of transformers, torchvision, timm, diffusers and torch, each with batches."""

import torch
from torch import nn

BATCH, LENGTH, WORDS, CLASSES = 4, 16, 100, 5


def text(labels):
    """labels: 'class', 'token' or 'text' (of the same words)."""

    def make(generator):
        words = torch.randint(3, WORDS, (BATCH, LENGTH), generator=generator)
        batch = {"input_ids": words, "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)}
        batch["labels"] = {
            "class": lambda: torch.randint(CLASSES, (BATCH,), generator=generator),
            "token": lambda: torch.randint(CLASSES, (BATCH, LENGTH), generator=generator),
            "text": lambda: words,
        }[labels]()
        return batch

    return make


def seq2seq(generator):
    words = torch.randint(3, WORDS, (BATCH, LENGTH), generator=generator)
    return {"input_ids": words, "labels": torch.randint(3, WORDS, (BATCH, LENGTH // 2), generator=generator)}


def pixels(size):
    def make(generator):
        return {
            "pixel_values": torch.randn(BATCH, 3, size, size, generator=generator),
            "labels": torch.randint(CLASSES, (BATCH,), generator=generator),
        }

    return make


def segmentation(generator):
    return {
        "pixel_values": torch.randn(2, 3, 64, 64, generator=generator),
        "labels": torch.randint(CLASSES, (2, 64, 64), generator=generator),
    }


def speech(generator):
    return {
        "input_features": torch.randn(BATCH, 80, 64, generator=generator),
        "labels": torch.randint(3, WORDS, (BATCH, LENGTH), generator=generator),
    }


def images(size):
    def make(generator):
        return torch.randn(BATCH, 3, size, size, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator)

    return make


def of_output(model, batch):
    return model(**batch).loss


def cross_entropy(model, batch):
    output = model(batch[0])
    output = getattr(output, "logits", output)
    return nn.functional.cross_entropy(output, batch[1])


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": WORDS}
DECODER = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def hf(head, config, make_batch, **values):
    def make():
        import transformers

        return getattr(transformers, head)(getattr(transformers, config)(**values)), of_output, make_batch

    return make


def encoder(name, config=None, labels="class", **values):
    head = {"class": "ForSequenceClassification", "token": "ForTokenClassification", "text": "ForMaskedLM"}[labels]
    return hf(name + head, (config or name) + "Config", text(labels), **{**SMALL, "num_labels": CLASSES, **values})


def decoder(name, **values):
    return hf(name + "ForCausalLM", name + "Config", text("text"), **{**DECODER, **values})


def vision(name, make_batch=pixels(32), head="ForImageClassification", **values):
    return hf(name + head, name + "Config", make_batch, **{"num_labels": CLASSES, "image_size": 32, **values})


def torchvision_model(name, size=64, **values):
    def make():
        import torchvision

        return getattr(torchvision.models, name)(num_classes=CLASSES, **values), cross_entropy, images(size)

    return make


def timm_model(name, size=64, **values):
    def make():
        import timm

        return timm.create_model(name, num_classes=CLASSES, **values), cross_entropy, images(size)

    return make


def diffusion(conditional):
    def make_batch(generator):
        batch = {
            "sample": torch.randn(2, 3, 16, 16, generator=generator),
            "timestep": torch.randint(1000, (2,), generator=generator),
        }
        noise = torch.randn(2, 3, 16, 16, generator=generator)
        if conditional:
            batch["encoder_hidden_states"] = torch.randn(2, 7, 16, generator=generator)
        return batch, noise

    def loss(model, batch):
        return nn.functional.mse_loss(model(**batch[0]).sample, batch[1])

    def make():
        import diffusers

        common = {"sample_size": 16, "in_channels": 3, "out_channels": 3, "layers_per_block": 1, "norm_num_groups": 8, "block_out_channels": (16, 32)}
        if conditional:
            model = diffusers.UNet2DConditionModel(
                **common, cross_attention_dim=16, attention_head_dim=4,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            )
        else:
            model = diffusers.UNet2DModel(
                **common, attention_head_dim=4,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            )
        return model, loss, make_batch

    return make


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.cells = getattr(nn, kind)(32, 32, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, WORDS)

    def forward(self, words):
        return self.head(self.cells(self.words(words))[0]).transpose(1, 2)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, WORDS)

    def forward(self, words):
        return self.head(self.layers(self.words(words))).transpose(1, 2)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Dropout2d(0.1))

        self.down, self.deep, self.up = block(3, 8), block(8, 16), block(24, 8)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        first = self.down(x)
        deep = self.deep(nn.functional.max_pool2d(first, 2))
        return self.head(self.up(torch.cat([first, nn.functional.interpolate(deep, scale_factor=2.0)], 1)))


def words_in_order(generator):
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=generator)
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


def own(make_model, make_batch, loss=cross_entropy):
    return lambda: (make_model(), loss, make_batch)


def pixel_classes(generator):
    return torch.randn(2, 3, 32, 32, generator=generator), torch.randint(CLASSES, (2, 32, 32), generator=generator)


MODELS = {
    # encoders
    "BERT": encoder("Bert"),
    "BERT tokens": encoder("Bert", labels="token"),
    "BERT masked": encoder("Bert", labels="text"),
    "RoBERTa": encoder("Roberta", pad_token_id=1, max_position_embeddings=64),
    "DistilBERT": encoder("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "ALBERT": encoder("Albert", embedding_size=32),
    "ELECTRA": encoder("Electra", embedding_size=32),
    "DeBERTa v2": encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "MPNet": encoder("MPNet"),
    "CamemBERT": encoder("Camembert", pad_token_id=1, max_position_embeddings=64),
    "XLM-R": encoder("XLMRoberta", pad_token_id=1, max_position_embeddings=64),
    "ModernBERT": encoder("ModernBert", pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2),
    "XLNet": encoder("XLNet", d_model=32, n_layer=2, n_head=4, d_inner=64, pad_token_id=0),
    # decoders
    "GPT-2": hf("GPT2LMHeadModel", "GPT2Config", text("text"), n_embd=32, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=64, bos_token_id=1, eos_token_id=2),
    "Llama": decoder("Llama"),
    "Qwen2": decoder("Qwen2"),
    "Qwen3": decoder("Qwen3", head_dim=8),
    "Gemma": decoder("Gemma", head_dim=8),
    "Mistral": decoder("Mistral"),
    "Mixtral (MoE)": decoder("Mixtral", num_local_experts=4),
    "GPT-NeoX": decoder("GPTNeoX"),
    "OPT": decoder("OPT", ffn_dim=64, word_embed_proj_dim=32),
    "BLOOM": hf("BloomForCausalLM", "BloomConfig", text("text"), hidden_size=32, n_layer=2, n_head=4, vocab_size=WORDS, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "Falcon": decoder("Falcon"),
    "Phi": decoder("Phi"),
    "StableLM": decoder("StableLm"),
    "Mamba": hf("MambaForCausalLM", "MambaConfig", lambda g: {k: v for k, v in text("text")(g).items() if k != "attention_mask"}, hidden_size=32, num_hidden_layers=2, state_size=8, vocab_size=WORDS),
    # encoder and decoder
    "T5": hf("T5ForConditionalGeneration", "T5Config", seq2seq, d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64, vocab_size=WORDS, decoder_start_token_id=0),
    "BART": hf("BartForConditionalGeneration", "BartConfig", seq2seq, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=WORDS, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2),
    "Whisper": hf("WhisperForConditionalGeneration", "WhisperConfig", speech, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=WORDS, max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    # images
    "ViT": vision("ViT", **{k: v for k, v in SMALL.items() if k != "vocab_size"}, patch_size=8),
    "DeiT": vision("DeiT", **{k: v for k, v in SMALL.items() if k != "vocab_size"}, patch_size=8),
    "BEiT": vision("Beit", **{k: v for k, v in SMALL.items() if k != "vocab_size"}, patch_size=8),
    "Swin": vision("Swin", embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, patch_size=4),
    "ConvNeXt": vision("ConvNext", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    "ResNet (transformers)": vision("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "MobileNetV2": vision("MobileNetV2"),
    "SegFormer": hf("SegformerForSemanticSegmentation", "SegformerConfig", segmentation, num_labels=CLASSES, hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=16, depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4]),
    "ResNet-18": torchvision_model("resnet18"),
    "MobileNetV3": torchvision_model("mobilenet_v3_small"),
    "EfficientNet-B0": torchvision_model("efficientnet_b0"),
    "RegNet": torchvision_model("regnet_y_400mf"),
    "ShuffleNet": torchvision_model("shufflenet_v2_x0_5"),
    "SqueezeNet": torchvision_model("squeezenet1_1"),
    "VGG-11": torchvision_model("vgg11_bn"),
    "DenseNet": torchvision_model("densenet121"),
    "ViT (torchvision)": torchvision_model("VisionTransformer", size=32, image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64),
    "ResNet-10t": timm_model("resnet10t"),
    "MLP-Mixer": timm_model("mixer_s32_224", size=32, img_size=32),
    "EfficientNetV2": timm_model("tf_efficientnetv2_b0"),
    "CoAtNet": timm_model("coatnet_pico_rw_224", size=64, img_size=64),
    "XCiT": timm_model("xcit_nano_12_p16_224", size=32),
    # diffusion
    "UNet2D": diffusion(conditional=False),
    "UNet2DCondition": diffusion(conditional=True),
    # torch alone
    "LSTM": own(lambda: Recurrent("LSTM"), words_in_order),
    "GRU": own(lambda: Recurrent("GRU"), words_in_order),
    "nn.Transformer": own(Transformer, words_in_order),
    "U-Net": own(UNet, pixel_classes),
}
