"""Names that are used though no line of Python says so: vulture takes what stands here for their use."""

from __future__ import annotations

from types import SimpleNamespace

_ = SimpleNamespace()

# Called by name: by the standard library, by click, by torch, by the host's dispatch of operations.
_.readable, _.seekable, _.readinto, _.log_message, _.handle_starttag, _.optionxform, _.compress_type  # noqa: B018
_.create_module, _.exec_module, _.provide, _._readlink, _._realpath, _._walk  # noqa: B018
_.commenters, _.whitespace, _.whitespace_split  # noqa: B018
_.on_broken_pipe, _.format_arguments, _.list_commands, _.format_commands, _.LIST  # noqa: B018
_.fail_on_recompile_limit_hit, _.recompile_limit, _.encode_special_tokens, _.justify  # noqa: B018
# Arguments that a caller gives by position.
_.frame, _.pl_module  # noqa: B018
# Fields that are read in JSON, or from it.
_.original_from, _.taken_ns, _.authored_ns, _.cuda_before, _.cuda_swapped, _.cuda_restored  # noqa: B018
_.config_digest, _.anchors_per_document, _.target_s, _.pre_tokenizer, _.relative_error  # noqa: B018
