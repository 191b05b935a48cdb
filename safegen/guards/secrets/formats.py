"""Keys and tokens that providers give a form of their own: a prefix, an alphabet and a length.

One union pattern finds where a key may start; the formats then say which it is, the longest one winning. What is sought
is public: each provider documents its form so that scanners find leaked keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.reading import compiled

# rule: RE2 pattern. A boundary is asked for on both sides; no pattern is longer than MAX_LENGTH octets.
FORMATS: dict[str, str] = {
    "adafruit_key": r"aio_[A-Za-z0-9]{28}",
    "age_secret_key": r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}",
    "airtable_token": r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}",
    "alibaba_access_key": r"LTAI[A-Za-z0-9]{12,20}",
    "anthropic_key": r"sk-ant-[A-Za-z0-9_\-]{20,150}",
    "atlassian_token": r"ATATT3[A-Za-z0-9_\-=]{60,200}|ATBB[A-Za-z0-9]{32}",
    "aws_access_key": r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}",
    "azure_client_secret": r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.\-]{31,34}",
    "cloudflare_origin_key": r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}",
    "contentful_token": r"CFPAT-[A-Za-z0-9_\-]{43}",
    "databricks_token": r"dapi[a-f0-9]{32}(?:-\d)?",
    "digitalocean_token": r"do[oprt]_v1_[a-f0-9]{64}",
    "discord_token": r"[MNO][A-Za-z0-9]{23,25}\.[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{27,38}",
    "discord_webhook": r"discord(?:app)?\.com/api/webhooks/\d{17,20}/[A-Za-z0-9_\-]{60,72}",
    "docker_token": r"dckr_(?:pat|oat)_[A-Za-z0-9_\-]{27,36}",
    "doppler_token": r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_\-]{2,35}\.)?[A-Za-z0-9]{40,44}",
    "duffel_token": r"duffel_(?:test|live)_[A-Za-z0-9_\-=]{43}",
    "dynatrace_token": r"dt0[a-z]\d\d\.[A-Z2-7]{24}\.[A-Z2-7]{64}",
    "easypost_token": r"EZ[AT]K[A-Za-z0-9]{54}",
    "facebook_token": r"EAA[CGM][A-Za-z0-9]{60,200}",
    "figma_token": r"fig[dou]r?_[A-Za-z0-9_\-]{38,46}",
    "flyio_token": r"fo1_[A-Za-z0-9_\-]{43}",
    "github_token": r"gh[pousr]_[A-Za-z0-9]{36,250}|github_pat_[A-Za-z0-9_]{22,240}",
    "gitlab_token": r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas)-[A-Za-z0-9_\-]{20,64}(?:\.[a-z0-9.]{2,20})?",
    "google_api_key": r"AIza[A-Za-z0-9_\-]{35}",
    "google_oauth": r"GOCSPX-[A-Za-z0-9_\-]{28}|ya29\.[A-Za-z0-9_\-]{20,220}",
    "grafana_token": r"glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}|glc_eyJ[A-Za-z0-9+/=]{30,240}",
    "groq_key": r"gsk_[A-Za-z0-9]{48,56}",
    "heroku_key": r"HRKU-[A-Za-z0-9_\-]{36,64}",
    "huggingface_token": r"hf_[A-Za-z0-9]{30,40}|api_org_[A-Za-z0-9]{34}",
    "langsmith_key": r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}",
    "linear_key": r"lin_(?:api|oauth)_[A-Za-z0-9]{32,64}",
    "mailchimp_key": r"[a-f0-9]{32}-us\d{1,2}",
    "mailgun_key": r"key-[a-f0-9]{32}|pubkey-[a-f0-9]{32}|[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8}",
    "mapbox_token": r"[ps]k\.eyJ[A-Za-z0-9_\-]{40,200}\.[A-Za-z0-9_\-]{20,30}",
    "microsoft_teams_webhook": r"webhook\.office\.com/webhookb2/[a-z0-9@\-]{36,80}/IncomingWebhook/[a-z0-9]{32}/[a-z0-9\-]{36}",  # noqa: E501
    "netlify_token": r"nf[pkobuc]_[A-Za-z0-9]{36,40}",
    "newrelic_key": r"NR(?:AK|II|RA|AA)-[A-Za-z0-9\-]{27,42}|NRJS-[a-f0-9]{19}|[a-f0-9]{36}FFFFNRAL",
    "notion_token": r"ntn_\d{11}[A-Za-z0-9]{32,35}|secret_[A-Za-z0-9]{43}",
    "npm_token": r"npm_[A-Za-z0-9]{36}",
    "openai_key": r"sk-(?:proj|svcacct|admin|None|or-v1)-[A-Za-z0-9_\-]{20,200}|sk-[A-Za-z0-9]{32,64}",
    "perplexity_key": r"pplx-[A-Za-z0-9]{32,56}",
    "pinecone_key": r"pcsk_[A-Za-z0-9_]{40,80}",
    "planetscale_token": r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9=._\-]{32,64}",
    "postman_key": r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    "prefect_key": r"pn[ub]_[A-Za-z0-9]{36}",
    "pulumi_token": r"pul-[a-f0-9]{40}",
    "pypi_token": r"pypi-[A-Za-z0-9_\-]{60,240}",
    "razorpay_key": r"rzp_(?:live|test)_[A-Za-z0-9]{14,24}",
    "readme_key": r"rdme_[a-z0-9]{70}",
    "replicate_token": r"r8_[A-Za-z0-9]{37}",
    "rubygems_key": r"rubygems_[a-f0-9]{48}",
    "sendgrid_key": r"SG\.[A-Za-z0-9_\-]{16,32}\.[A-Za-z0-9_\-]{16,64}",
    "sendinblue_key": r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}",
    "sentry_token": r"sntry[su]_[A-Za-z0-9+/=_]{40,240}",
    "shippo_token": r"shippo_(?:live|test)_[a-f0-9]{40}",
    "shopify_token": r"shp(?:at|ca|pa|ss|ua|tka)_[a-fA-F0-9]{32}",
    "slack_token": r"xox[abceoprs]-[A-Za-z0-9\-]{10,200}|xapp-\d-[A-Za-z0-9\-]{20,200}|xoxe\.xox[bp]-\d-\w{90,200}",
    "slack_webhook": r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{40,100}",
    "square_token": r"sq0[a-z]{3}-[A-Za-z0-9_\-]{22,43}|EAAA[A-Za-z0-9_\-]{60}",
    "stripe_key": r"(?:[sr]k|pk)_(?:live|test|prod)_[A-Za-z0-9]{10,200}|whsec_[A-Za-z0-9+/=]{24,64}",
    "supabase_key": r"sb(?:p|_secret)_[A-Za-z0-9_]{30,50}",
    "tailscale_key": r"tskey-(?:auth|api|client|scim|webhook)-[A-Za-z0-9]{8,24}-[A-Za-z0-9]{16,40}",
    "telegram_token": r"\d{8,10}:AA[A-Za-z0-9_\-]{32,34}",
    "tencent_key": r"AKID[A-Za-z0-9]{32}",
    "terraform_token": r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_\-=]{60,70}",
    "twilio_key": r"(?:SK|AC)[a-f0-9]{32}",
    "typeform_token": r"tfp_[A-Za-z0-9_\-.=]{40,64}",
    "vault_token": r"hv[sbr]\.[A-Za-z0-9_\-]{24,200}",
    "xai_key": r"xai-[A-Za-z0-9]{60,90}",
}
MAX_LENGTH = 264
_ENDS = r"(?:[^A-Za-z0-9_]|\z)"
_UNION = compiled(rf"\b(?:{'|'.join(FORMATS.values())})")
_COMPILED: dict[str, Any] = {name: compiled(rf"(\b(?:{pattern})){_ENDS}") for name, pattern in FORMATS.items()}
# What any of the formats is made of, so that a key that is not whole yet is held.
_LIVE = r"\b[A-Za-z0-9_~][A-Za-z0-9_~.\-+/=:@]*"


def scan(octets: bytes) -> Iterator[Candidate]:
    found = _UNION.search(octets)
    while found is not None:
        start = found.start()
        for name, pattern in _COMPILED.items():
            match = pattern.match(octets, start)
            if match is not None:
                yield start, match.end(1), 1.0, name
        found = _UNION.search(octets, start + 1)


RULE = Rule("provider_key", MAX_LENGTH, scan, _LIVE, gate=r"[A-Za-z0-9_~.\-+/=]{12}", names=tuple(FORMATS))
