"""Secrets in every form that people write, each with a word of its own: a leak names its form and its place."""

from __future__ import annotations

FORMS: dict[str, str] = {
    "option": "python t.py --api-key {}",
    "option=": "python t.py --access-key={}",
    "header": "x-api-key: {}",
    "header without a blank": "X-Api-Key:{}",
    "authorization": "Authorization: Basic {}",
    "bearer": "curl -H 'bearer {}'",
    "pass:": "openssl enc -pass pass:{}",
    "query": "https://blob.example/x?sv=1&sig={}&x=1",
    "query token": "https://index.example/simple?token={}",
    "signed URL": "https://s3.example/k?X-Amz-Signature={}",
    "user info": "https://me:{}@index.example/simple",
    "user info alone": "https://{}@index.example/simple",
    "variable _PASS": "TORCH_HUB_PASS={}",
    "variable _PWD": "DB_PWD={}",
    "PGPASSWORD": "PGPASSWORD={} psql",
    "export": "export HF_TOKEN={}",
    "fish": "set -x HF_TOKEN {}",
    "list of JSON": '"--hf-token",\n    "{}"',
    "list of Python": "['--hf-token', '{}']",
    "object of JSON": '{{"api_key": "{}"}}',
    "JSON within JSON": '{{\\"api_key\\": \\"{}\\"}}',
    "camelCase": '"hfAccessToken": "{}"',
    "args": "args: wandb.api_key={}",
    "INI": "aws_secret_access_key = {}",
    "YAML": "password: {}",
    "block of YAML": "password: |\n  {}\n",
    "connection": "DefaultEndpointsProtocol=https;AccountKey={}",
    "mysql": "mysql -u root -p{} db",
    "sshpass": "sshpass -p {} ssh host",
    "login": "wandb login {}",
    "pipe to login": "echo {} | docker login -u me --password-stdin reg.example",
    "here string": "docker login reg.example --password-stdin <<< {}",
    "curl -u": "curl -u ada:{} https://host.example/",
    "redis": "redis://:{}@cache.example:6379/0",
    "token of a service": "hf_abcdefghijklmnop{}",
}


def planted(place: str) -> tuple[dict[str, str], list[str]]:
    """(form → its word, a text of each form with its word) for one place."""
    code = "".join(ch for ch in place.title() if ch.isalnum())
    words = {form: f"Zq{code}{number:02d}7Xv9" for number, form in enumerate(FORMS)}
    return words, [FORMS[form].format(word) for form, word in words.items()]
