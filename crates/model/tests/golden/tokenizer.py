#!/usr/bin/env python3
"""Makes the golden files of tokenizers and chat templates beside this script.

    pip install xllamacpp gguf jinja2 regex
    python tokenizer.py DIRECTORY_OF_MODELS

What is asked (texts, conversations, templates) is read from the files themselves; only the answers are
written anew. Tokens are llama.cpp's, through the C functions that xllamacpp exports. Prompts are those of
Jinja, with the settings of Hugging Face's transformers. Words are those that the `regex` module makes of
the models' own expressions; llama.cpp's are the same, except for those that it approximates.
"""
import ctypes, json, re, sys
from pathlib import Path

import jinja2.sandbox, regex, xllamacpp
from gguf import GGUFReader

HERE, MODELS = Path(__file__).parent, Path(sys.argv[1])


def read(name):
    return json.loads((HERE / name).read_text())


def write(name, value, **options):
    (HERE / name).write_text(json.dumps(value, **(options or {"separators": (",", ":")})) + "\n")


# llama.cpp


class Params(ctypes.Structure):
    """llama_model_params, with room for more fields; passed on as it came."""

    _fields_ = [("bytes", ctypes.c_uint8 * 256)]


library = ctypes.CDLL(next(str(path) for path in Path(xllamacpp.__file__).parent.glob("*.so")))
P, I, B = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
for name, result, arguments in [
    ("llama_model_default_params", Params, []),
    ("llama_model_load_from_file", P, [ctypes.c_char_p, Params]),
    ("llama_model_get_vocab", P, [P]),
    ("llama_vocab_n_tokens", I, [P]),
    ("llama_vocab_is_eog", B, [P, I]),
    ("llama_vocab_bos", I, [P]),
    ("llama_vocab_get_add_bos", B, [P]),
    ("llama_tokenize", I, [P, ctypes.c_char_p, I, P, I, B, B]),
]:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


def vocabulary(model):
    path = str(MODELS / model).encode()
    return library.llama_model_get_vocab(
        library.llama_model_load_from_file(path, library.llama_model_default_params())
    )


def tokenize(vocab, text, parse):
    text = text.encode()
    tokens = (I * (len(text) + 16))()
    return list(tokens[: library.llama_tokenize(vocab, text, len(text), tokens, len(tokens), False, parse)])


def tokenizers():
    texts = read("tokenizer-texts.json")
    for name in ["gemma", "qwen", "smollm2"]:
        golden, answers = read(f"tokenizer-{name}.json"), []
        for model in golden["models"]:
            vocab = vocabulary(model)
            text = [tokenize(vocab, t, False) for t in texts]
            parse = [tokenize(vocab, t, True) for t in texts]
            size = library.llama_vocab_n_tokens(vocab)
            answers.append({
                "bos": library.llama_vocab_bos(vocab) if library.llama_vocab_get_add_bos(vocab) else None,
                "end_of_generation": [i for i in range(size) if library.llama_vocab_is_eog(vocab, i)],
                "text": text,
                "parse": {str(i): p for i, (p, t) in enumerate(zip(parse, text)) if p != t},
            })
        assert all(answer == answers[0] for answer in answers)
        write(f"tokenizer-{name}.json", {"models": golden["models"], **answers[0]})


# Templates


def environment():
    def fail(message):
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = fail
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return environment


def render(template, messages, bos, eos):
    return environment().from_string(template).render(
        messages=messages, add_generation_prompt=True, tools=None, documents=None, bos_token=bos, eos_token=eos
    )


def prompt(vocab, template, messages, bos, eos):
    """Tokens of a prompt. Text of messages goes through the template as numbers, so that what are control
    tokens is known before it is put in."""
    numbered = [{**m, "content": f"\ue000{i}\ue001" if "<|" in m["content"] else m["content"]} for i, m in enumerate(messages)]
    tokens = []
    for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", render(template, numbered, bos, eos)):
        text = re.sub("\ue000(\\d+)\ue001", lambda found: messages[int(found[1])]["content"], part)
        tokens += tokenize(vocab, text, part.startswith("<|im_"))
    return tokens


def prompts():
    for name in ["qwen", "smollm2"]:
        golden = read(f"chat-{name}.json")
        for model in golden["models"]:
            fields, vocab = GGUFReader(MODELS / model).fields, vocabulary(model)
            pieces = fields["tokenizer.ggml.tokens"].contents()
            bos, eos = (pieces[fields[f"tokenizer.ggml.{key}_token_id"].contents()] for key in ["bos", "eos"])
            template = fields["tokenizer.chat_template"].contents()
            for case in golden["cases"]:
                case["tokens"] = prompt(vocab, template, case["messages"], bos, eos)
        write(f"chat-{name}.json", golden)


def templates():
    golden = read("chat-templates.json")
    for case in golden["cases"]:
        messages = golden["conversations"][case["conversation"]]
        case["text"] = render(golden["templates"][case["template"]], messages, "<s>", "</s>")
    write("chat-templates.json", golden, indent=1)


# Words

SPACES = r"|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + SPACES
ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r"[\r\n]*|\s*[\r\n]+" + SPACES
LETTERS, OTHER = r"|[^\r\n\p{L}\p{N}]?\p{L}+", r"| ?[^\s\p{L}\p{N}]+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(suffix):
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{UPPER}*{LOWER}+{suffix}|{before}{UPPER}+{LOWER}*{suffix}"


CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# The class of letters is taken from the source: it is data.
RULES = (HERE.parents[1] / "src/tokenizer/split.rs").read_text()
DEEPSEEK = re.search(r'DEEPSEEK_LETTERS: &str =\s*r"(.*?)"', RULES)[1]
DEEPSEEK = re.sub(r"\\x\{([0-9A-F]+)\}", lambda found: chr(int(found[1], 16)), DEEPSEEK)
WORDS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "llama-bpe": [ENGLISH + LETTERS + r"|\p{N}{1,3}" + OTHER + LINES],
    "qwen2": [ENGLISH + LETTERS + r"|\p{N}" + OTHER + LINES],
    "qwen35": [ENGLISH + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + LINES],
    "smollm": [r"\p{N}", GPT2],
    "deepseek-llm": [
        r"[\r\n]", DEEPSEEK, "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", CJK, r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+""" + LINES,
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "seed-coder": [ENGLISH + LETTERS + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+" + SPACES],
    "bailingmoe": [ENGLISH + LETTERS + r"|\p{N}" + OTHER + r"[\r\n]*|\s*[\r\n]" + SPACES],
    "tekken": [cased("") + r"|\p{N}" + OTHER + r"[\r\n/]*|\s*[\r\n]+" + SPACES],
    "gpt-4o": [cased(ENGLISH + "?") + r"|\p{N}{1,3}" + OTHER + r"[\r\n/]*|\s*[\r\n]+" + SPACES],
}


def split(text, expressions):
    parts = [text] if text else []
    for expression in expressions:
        pieces = []
        for part in parts:
            end = 0
            for found in regex.finditer(expression, part):
                pieces += [part[end : found.start()], found[0]]
                end = found.end()
            pieces.append(part[end:])
        parts = [piece for piece in pieces if piece]
    return parts


def words():
    texts = read("split.json")["texts"]
    lengths = {
        name: [[len(word.encode()) for word in split(text, expressions)] for text in texts]
        for name, expressions in WORDS.items()
    }
    write("split.json", {"texts": texts, "words": lengths})


tokenizers()
prompts()
templates()
words()
