"""Lines of an engine's log that tell of the model, the hub it comes from, and the job's settings.

Spellings were read in the sources of vLLM 0.32, transformers 5 and huggingface_hub.
"""

from __future__ import annotations

from batchwright.core.faults import KnownLine

_LEN = "engine.options.max_model_len"
_TP = "engine.options.tensor_parallel_size"

_MODEL = (
    KnownLine(
        "model_unsupported",
        r"Model architectures? (?P<names>\[[^\]]*\]|\S+) (?:are not supported for now"
        r"|was supported in vLLM until|is not supported in-tree)"
        r"|does not recognize this architecture",
        "this vLLM does not know the model's architecture {names}",
        "Check model.name; a new model needs a newer vLLM, or a plugin of its own.",
        of_job=True,
    ),
    KnownLine(
        "model_broken", r"Model architectures (?P<names>\[[^\]]*\]) failed to be inspected",
        "vLLM knows the architecture {names} but cannot import it",
        "The log has the import error above this line; mostly a package is missing or broken.",
    ),
    KnownLine(
        "remote_code",
        r"contains custom code which must be executed"
        r"|requires you to execute the configuration file"
        r"|(?:setting|set|option) `?trust_remote_code=True",
        "the model brings Python code of its own",
        "Read it, then allow it: model.trust_remote_code: true.",
        of_job=True,
    ),
    KnownLine(
        "model_gated",
        r"trying to access a gated repo|Cannot access gated repo|is a gated repository"
        r"|GatedRepoError|Access to model \S+ is restricted",
        "the model is gated, and this account may not have it",
        "Accept its terms on its page at huggingface.co, and set HF_TOKEN to a token of that "
        "account.",
        of_job=True,
    ),
    KnownLine(
        "hub_refused", r"401 Client Error|403 Client Error|Invalid user token",
        "the model hub does not take this machine's token",
        "Set HF_TOKEN to a valid one, or remove it for public models.",
    ),
    KnownLine(
        "model_not_found",
        r"is not a local folder and is not a valid model identifier|Repository Not Found"
        r"|Invalid repository ID or local directory specified|RepositoryNotFoundError"
        r"|Unrecognized model in",
        "there is no such model, neither a folder here nor on the hub",
        "Check model.name; a folder must hold config.json. A private model needs HF_TOKEN.",
        of_job=True,
    ),
    KnownLine(
        "hub_unreachable",
        r"couldn't connect to 'https://huggingface\.co'|LocalEntryNotFoundError"
        r"|Cannot reach .*offline mode is enabled|OfflineModeIsEnabled",
        "the model is not on this machine, and the hub cannot be reached",
        "Download it where there is a network, and name the folder in model.name.",
    ),
    KnownLine(
        "weights_damaged",
        r"SafetensorError|MetadataIncompleteBuffer|HeaderTooLarge|PytorchStreamReader failed",
        "a file of the weights is damaged or not complete",
        "Download the model again; a Git LFS pointer in place of a file looks like this too.",
        of_job=True,
    ),
    KnownLine(
        "weights_missing",
        r"Cannot find any model weights with|were not initialized from checkpoint"
        r"|There is no module or parameter named",
        "the weights do not belong to the model's config.json",
        "Download the whole model again, config.json and weights from one revision.",
        of_job=True,
    ),
    KnownLine(
        "chat_template",
        r"chat template is no longer allowed|tokenizer\.chat_template is not set",
        "the model has no chat template",
        "Name one in model.chat_template, or give plain prompts (prompt.chat: false).",
        of_job=True,
    ),
)  # fmt: skip

_SETTINGS = (
    KnownLine(
        "max_model_len",
        r"max_model_len \((?P<length>\d+)\) is greater than the derived max_model_len "
        r"\([^=]*=(?P<most>\d+)",
        "max_model_len {length} is more than the model's {most}",
        f"Set {_LEN}: {{most}} or less, or leave it out; longer needs rope scaling in "
        "engine.options.hf_overrides.",
        of_job=True,
    ),
    KnownLine(
        "tensor_parallel",
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size "
        r"\((?P<size>\d+)\)",
        "{size} cards cannot share the model's {heads} attention heads evenly",
        f"Set {_TP} to a divisor of {{heads}}.",
        of_job=True,
    ),
    KnownLine(
        "tensor_parallel", r"^(?:AssertionError: )?(?P<size>\d+) is not divisible by (?P<by>\d+)",
        "a layer of size {size} cannot be cut into {by} equal pieces",
        f"Lower {_TP}.",
        of_job=True,
    ),
    KnownLine(
        "too_few_cards",
        r"local_?rank \S+ is out of bounds|invalid device ordinal"
        r"|Cannot provide a placement group",
        "the engine is to span more cards than there are",
        f"Lower {_TP} (times pipeline_parallel_size), or look at CUDA_VISIBLE_DEVICES.",
        of_job=True,
    ),
    KnownLine(
        "quantization",
        r"[Qq]uantization (?:method \S+|scheme) is not supported for the current GPU"
        r".*capability: (?P<least>\d+).*Current capability: (?P<own>\d+)",
        "the model's quantisation needs a card of capability {least}; this one has {own}",
        "Take another quantisation of the model, or a newer card.",
        of_job=True,
    ),
    KnownLine(
        "quantization",
        r"Unknown quantization method|does not match the quantization method specified"
        r"|is not supported for quantization method",
        "this vLLM does not run the model's quantisation so",
        "Leave engine.options.quantization and model.dtype out: vLLM reads them from the model.",
        of_job=True,
    ),
    KnownLine(
        "dtype", r"Bfloat16 is only supported on GPUs",
        "this card has no bfloat16",
        "Set model.dtype: float16.",
        of_job=True,
    ),
    KnownLine(
        "attention", r"No valid attention backend found",
        "no attention kernel suits this model, card and KV cache type",
        "Leave out engine.options.kv_cache_dtype, attention_backend and block_size; the log has "
        "each kernel's reason.",
        of_job=True,
    ),
    KnownLine(
        "lora_rank", r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank (?P<most>\d+)",
        "an adapter has rank {rank}, and max_lora_rank is {most}",
        "Set engine.options.max_lora_rank: {rank} (vLLM takes 8, 16, 32, 64, 128, 256, 320, 512).",
        of_job=True,
    ),
    KnownLine(
        "kv_transfer",
        r"kv_transfer_config must be set|[Cc]onnector '?\S+ is not registered"
        r"|Unsupported connector type|No module named '(?:lmcache|nixl|mooncake)\S*'",
        "the KV connector of kv_transfer_config cannot be used",
        "Check engine.options.kv_transfer_config, and install the connector's package.",
        of_job=True,
    ),
)  # fmt: skip

OF_THE_JOB: tuple[KnownLine, ...] = (*_MODEL, *_SETTINGS)
