"""A Hugging Face config.json: the sizes of a model, as a workload of the catalogue where it has the same."""

from traincast.catalog import usual_length
from traincast.configs._documents import make_format
from traincast.configs._models import find_model, find_sizes, own_context, read_sizes
from traincast.configs._nouns import Draft


def _read(draft: Draft) -> None:
    keys = draft.keys
    sizes = read_sizes(keys.values)
    name = keys.word("_name_or_path")
    for key in list(keys.values):
        keys.take(key)
    known = find_sizes(sizes) if sizes is not None else find_model(name or "")
    if known is not None:
        draft.put("source", known, "model_type")
        draft.notes.append(f"{keys.where} has the sizes of {known} of the catalogue")
        return
    if sizes is None:
        kind = keys.values.get("model_type")
        draft.unmapped["model_type"] = f"{kind} is not built by the catalogue; give the file as the source to record it"
        return
    draft.put("source", name or str(keys.values.get("model_type")), "model_type")
    for field, value in sizes.items():
        draft.put(f"workload.{field}", value, "model_type")
    context = own_context(keys.values)
    if context is not None:
        length, words = usual_length(context)
        draft.assume("workload.seq", length, words)


HF_CONFIG = make_format("hf-config", _read)
