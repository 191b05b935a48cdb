"""Pieces that texts for the detectors are put together of, and keys of many providers, drawn from a seed.

No key here was ever issued: all of them are drawn at random in the form that the provider documents.
"""

from __future__ import annotations

import base64
import random
import string

_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_URLSAFE = _ALNUM + "-_"

FRAGMENTS = [
    "john@b.com", "@", "a@b.co", "@c.co", "%40", "[at]", " (at) ", "[dot]com", " dot ", "+1 (329) 988-4927",
    "415-555-2671", " x22", " ext. 4", "4111 1111 1111 1111", "4111111111111111", "12/27", "GB59IFUE40226315499137",
    "DE89 3704 0044 0532 0130 00", "123-45-6789", "SSN lS2-64-6269", "ssn ", "card ", "call ", "born on ",
    "12 March 1968", "March 12, 1968", "1/2/1968", "192.168.1.1", ".5", "fe80::1", "2001:db8::ff00:42:8329",
    "00:1A:2B:3C:4D:5E", "https://u:p@h.com/", "//", "\u200b", "\u200d" * 20, "é", "山", "Ж", "а", " ", ".", "-", "/",
    "\n", "1", "22", "333", "4444", "55555", "0", "a", "B", "x", "131052-308T", "12345678Z",
    "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "MRN-1234567",
    "0688 872 49 99", "(020) 7946 0958", "٣٤٥", "１２３－４５－６７８９", "Steuer-ID ",
]  # fmt: skip


def draw(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choices(alphabet, k=length))


def provider_keys(seed: int) -> dict[str, str]:
    """One key of each of 40 forms, by name."""
    rng = random.Random(seed)

    def some(length: int, alphabet: str = _ALNUM) -> str:
        return draw(rng, alphabet, length)

    def web_token() -> str:
        header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
        payload = base64.urlsafe_b64encode(b'{"sub":"%d"}' % rng.randrange(10**9)).decode().rstrip("=")
        return f"{header}.{payload}.{some(43, _URLSAFE)}"

    upper = string.ascii_uppercase + string.digits
    return {
        "aws": "AKIA" + some(16, string.ascii_uppercase + "234567"),
        "aws_session": "ASIA" + some(16, string.ascii_uppercase + "234567"),
        "github": "ghp_" + some(36),
        "github_fine": "github_pat_" + some(22) + "_" + some(59),
        "gitlab": "glpat-" + some(20, _URLSAFE[:-1]),
        "slack_bot": f"xoxb-{some(12, string.digits)}-{some(12, string.digits)}-{some(24)}",
        "slack_webhook": f"https://hooks.slack.com/services/T{some(8, upper)}/B{some(8, upper)}/{some(24)}",
        "stripe": "sk_live_" + some(24),
        "stripe_restricted": "rk_test_" + some(99),
        "google_api": "AIza" + some(35, _URLSAFE),
        "google_oauth": "GOCSPX-" + some(28, _URLSAFE[:-2]),
        "openai": f"sk-{some(20)}T3BlbkFJ{some(20)}",
        "openai_project": "sk-proj-" + some(120, _URLSAFE[:-1]),
        "anthropic": f"sk-ant-api03-{some(93, _URLSAFE[:-1])}AA",
        "huggingface": "hf_" + some(34),
        "replicate": "r8_" + some(37),
        "groq": "gsk_" + some(52),
        "sendgrid": f"SG.{some(22, _URLSAFE[:-1])}.{some(43, _URLSAFE[:-1])}",
        "twilio": "SK" + some(32, _HEX),
        "mailgun": "key-" + some(32, _HEX),
        "mailchimp": some(32, _HEX) + "-us12",
        "npm": "npm_" + some(36),
        "pypi": "pypi-AgEIcHlwaS5vcmc" + some(150, _ALNUM),
        "docker": "dckr_pat_" + some(27, _ALNUM),
        "digitalocean": "dop_v1_" + some(64, _HEX),
        "shopify": "shpat_" + some(32, _HEX),
        "square": "sq0csp-" + some(43, _ALNUM),
        "telegram": f"{some(9, '123456789')}:AA{some(33, _ALNUM)}",
        "discord": f"M{some(23)}.{some(6)}.{some(38)}",
        "databricks": "dapi" + some(32, _HEX),
        "grafana": f"glsa_{some(32)}_{some(8, _HEX)}",
        "vault": "hvs." + some(95, _ALNUM),
        "linear": "lin_api_" + some(40),
        "notion": f"ntn_{some(11, string.digits)}{some(35)}",
        "postman": f"PMAK-{some(24, _HEX)}-{some(34, _HEX)}",
        "pulumi": "pul-" + some(40, _HEX),
        "rubygems": "rubygems_" + some(48, _HEX),
        "newrelic": "NRAK-" + some(27, upper),
        "doppler": "dp.pt." + some(43),
        "azure_storage": f"AccountKey={base64.b64encode(rng.randbytes(64)).decode()}",
        "jwt": web_token(),
        "private_key": private_key(rng),
    }


def private_key(rng: random.Random) -> str:
    body = base64.b64encode(rng.randbytes(600)).decode()
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"


_KEYS = provider_keys(1)
SECRET_FRAGMENTS = [
    *(_KEYS[name] for name in ("aws", "github", "slack_bot", "openai", "jwt", "telegram", "mailchimp", "stripe")),
    "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA1234\n", "abcd==", "-----",
    "-", "--", "BEGIN", "\n", " ", "Proc-Type: 4,ENCRYPTED\n", 'password = "', "Tr0ub4dor&3x", '"', "api_key: ",
    "9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c", "postgres://admin:", "s3cr3t", "@db/x", "eyJ", ".", "eyJhbGciOiJIUzI1NiJ9",
    "AKIA", "token=", "x", "9", "é", "\u200b", "AccountKey=", "=", "sk-", "https://",
]  # fmt: skip
