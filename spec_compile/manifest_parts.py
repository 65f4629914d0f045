"""The parts of a manifest as frozen dataclasses, and how each is read from JSON."""

from __future__ import annotations

from dataclasses import dataclass

from spec_compile.json_fields import Fields, as_integer, as_text


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Args:
        name: name in the graph.
        dtype: NumPy's name of the element type.
        shape: a number for a fixed size, a name (`B` rows, `T` new tokens, `N` source tokens, `J`
            draft tokens, `J+1`) for a free one.
        alias_of: for an output, the input whose buffer it is written to (caches); else None.
            Several outputs may name one input: a graph that writes a cache more than once.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    alias_of: str | None = None


@dataclass(frozen=True)
class GraphSpec:
    """One graph: its file in the bundle and its tensors, in the file's order."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def input(self, name: str) -> TensorSpec | None:
        """The input called `name`, or None."""
        return next((tensor for tensor in self.inputs if tensor.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """The output called `name`, or None."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)

    @property
    def takes_any_length(self) -> bool:
        """Whether a call may verify any number of draft tokens up to k, none included."""
        drafted = self.input("draft_tokens")
        return drafted is not None and "J" in drafted.shape

    @property
    def caches(self) -> tuple[TensorSpec, ...]:
        """The inputs that an output is written back to, in order."""
        aliased = {tensor.alias_of for tensor in self.outputs}
        return tuple(tensor for tensor in self.inputs if tensor.name in aliased)


@dataclass(frozen=True)
class FileSpec:
    """Size in bytes and lower-case hexadecimal SHA-256 of one file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class ModelSpec:
    """Where a model came from; `license` is None when its card names none."""

    source: str
    architecture: str
    license: str | None
    num_layers: int
    num_parameters: int


@dataclass(frozen=True)
class BundleConfig:
    """What the bundle was compiled for; names as in `SpecConfig`, `exact` as the rule says.

    The n-gram sizes are None unless the drafter is `prompt-lookup`, beta and tau unless the rule
    is `specdec`.
    """

    num_speculative_tokens: int
    acceptance: str
    exact: bool
    fusion: str
    backend: str
    dtype: str
    max_length: int
    batch_size: int
    num_drafts: int
    quantize: str | None = None
    quantize_draft: str | None = None
    drafter: str = "model"
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    specdec_beta: int | None = None
    specdec_tau: float | None = None

    @property
    def samples(self) -> bool:
        """Whether the rule draws tokens; a bundle of one that does not decodes greedily alone."""
        return self.acceptance not in ("greedy", "specdec")

    @property
    def lookup_sizes(self) -> tuple[int, int] | None:
        """Fewest and most last tokens that prompt lookup looks for; None with a draft model."""
        if self.prompt_lookup_min is None or self.prompt_lookup_max is None:
            return None
        return self.prompt_lookup_min, self.prompt_lookup_max

    @property
    def slots(self) -> int:
        """Cache entries a row has at least: the last round writes its drafts behind a full row."""
        return self.max_length + self.num_drafts * self.num_speculative_tokens

    @property
    def draws_by_position(self) -> bool:
        """Whether a row's random number i belongs to its output token i, whatever the rounds are.

        So it is where the target draws each token itself: its draw at a place is the same in every
        round that reaches the place, and the same as in plain decoding.
        """
        return self.acceptance == "match"


def read_config(fields: Fields) -> BundleConfig:
    """The field `config`."""
    config = BundleConfig(
        num_speculative_tokens=fields.integer("num_speculative_tokens"),
        acceptance=fields.text("acceptance"),
        exact=fields.boolean("exact"),
        fusion=fields.text("fusion"),
        backend=fields.text("backend"),
        dtype=fields.text("dtype"),
        max_length=fields.integer("max_length"),
        batch_size=fields.integer("batch_size"),
        num_drafts=fields.integer("num_drafts"),
        quantize=fields.optional_text("quantize"),
        quantize_draft=fields.optional_text("quantize_draft"),
        drafter=fields.text("drafter"),
        prompt_lookup_min=fields.optional_integer("prompt_lookup_min"),
        prompt_lookup_max=fields.optional_integer("prompt_lookup_max"),
        specdec_beta=fields.optional_integer("specdec_beta"),
        specdec_tau=fields.optional_number("specdec_tau"),
    )
    fields.finish()
    return config


def read_model(fields: Fields) -> ModelSpec:
    """An entry of `models`."""
    model = ModelSpec(
        source=fields.text("source"),
        architecture=fields.text("architecture"),
        license=fields.optional_text("license"),
        num_layers=fields.integer("num_layers"),
        num_parameters=fields.integer("num_parameters"),
    )
    fields.finish()
    return model


def read_file(fields: Fields) -> FileSpec:
    """An entry of `files`."""
    file = FileSpec(sha256=fields.text("sha256"), size=fields.integer("size"))
    fields.finish()
    return file


def read_graph(fields: Fields) -> GraphSpec:
    """An entry of `graphs`."""
    inputs = tuple(_read_tensor(Fields(v, w)) for v, w in fields.elements("inputs"))
    outputs = tuple(_read_tensor(Fields(v, w)) for v, w in fields.elements("outputs"))
    graph = GraphSpec(file=fields.text("file"), inputs=inputs, outputs=outputs)
    fields.finish()
    return graph


def _read_tensor(fields: Fields) -> TensorSpec:
    shape = tuple(_size(value, where) for value, where in fields.elements("shape"))
    alias = fields.text("alias_of") if fields.has("alias_of") else None
    tensor = TensorSpec(fields.text("name"), fields.text("dtype"), shape, alias)
    fields.finish()
    return tensor


def _size(value: object, where: str) -> int | str:
    return as_text(value, where) if isinstance(value, str) else as_integer(value, where)
