"""Settings. What differs from site to site comes from the environment:

DATABASE_URL        postgresql://user:password@host/name; without it, the embedded server under var/
CELERY_BROKER_URL   Redis or RabbitMQ; without it, files under var/broker
SECRET_KEY          without it, one is made and kept in var/secret-key
SECRET_KEY_FALLBACKS  keys before it, parted by commas: what they signed and sealed is still read
ALLOWED_HOSTS       host names, parted by commas; naming any also turns HTTPS on
LONGEST_BODY        bytes of one REST body (2.5 MiB); LONGEST_BULK_BODY: of many things at once (16 MiB)
SIGN_IN_FAILURES, PREVIEWS_PER_MINUTE, ...: how often somebody may try; see below
EMAIL_HOST          server that sends mail; EMAIL_PORT, EMAIL_HOST_USER, EMAIL_HOST_PASSWORD, EMAIL_USE_TLS (1 or 0),
                    EMAIL_USE_SSL, EMAIL_FROM; without it nobody is told anything by mail
WEBHOOK_ALLOWED     hosts and networks (10.1.0.0/16), parted by commas, that webhooks of people may lead to beside
                    the public internet
HTTPS               1 or 0: cookies, redirects and HSTS as behind TLS
SWITCHYARD_VAR      folder for everything that changes (var)
"""

import os
from pathlib import Path

from apps.core import embedded_postgres
from scheduler_site import environment

_MIB = 1024 * 1024

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(os.environ.get("SWITCHYARD_VAR", BASE_DIR / "var")).resolve()

DEBUG = environment.flag("DEBUG", False)
SECRET_KEY = environment.secret_key(VAR_DIR)
SECRET_KEY_FALLBACKS = environment.words("SECRET_KEY_FALLBACKS", [])
ALLOWED_HOSTS = environment.words("ALLOWED_HOSTS", ["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = environment.words("CSRF_TRUSTED_ORIGINS", [])

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "csp",
    "apps.core",
    "apps.events",
    "apps.inventory",
    "apps.teams",
    "apps.power",
    "apps.reservations",
    "apps.staging",
    "apps.jobs",
    "apps.scheduling",
    "apps.execution",
    "apps.simulation",
    "apps.notices",
    "apps.dashboard",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "apps.core.requests.SourceMiddleware",
]

ROOT_URLCONF = "scheduler_site.urls"
WSGI_APPLICATION = "scheduler_site.wsgi.application"
APPEND_SLASH = True  # pages end in a slash, addresses of the API do not

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "apps.dashboard.frame.frame",
            ],
        },
    },
]

DATABASES = {
    "default": {
        **environment.database(os.environ.get("DATABASE_URL") or embedded_postgres.url(VAR_DIR / "postgres")),
        "CONN_MAX_AGE": 60,
        # A server that was restarted leaves dead connections behind; ask before using one.
        "CONN_HEALTH_CHECKS": True,
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "teams.User"
LOGIN_URL = "dashboard:login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "dashboard:login"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = VAR_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "scheduler_site.static_files.Storage"},
}
WHITENOISE_KEEP_ONLY_HASHED_FILES = True
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = [
    "jpg",
    "jpeg",
    "png",
    "gif",
    "webp",
    "gz",
    "br",
    "zip",
    "woff",
    "woff2",
    "map",
]
MEDIA_ROOT = VAR_DIR / "media"

# --- Safety -------------------------------------------------------------------------------------------------------

HTTPS = environment.flag("HTTPS", "ALLOWED_HOSTS" in os.environ)
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]  # probes come by plain HTTP from inside
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
# Only a proxy that strips this header from the outside may be trusted with it.
if environment.flag("TRUST_PROXY", False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
TRUST_PROXY = environment.flag("TRUST_PROXY", False)
SESSION_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = int(2.5 * _MIB)  # of a form
FILE_UPLOAD_HANDLERS = ["apps.core.uploads.NoUploads"]

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        # The hash is the empty string: plotly.js adds an empty style element.
        "style-src": ["'self'", "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    },
}

# --- REST ---------------------------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.core.api.authentication.BearerAuthentication",
        "apps.core.api.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["apps.core.api.authentication.IsSignedIn"],
    "DEFAULT_PARSER_CLASSES": ["apps.core.api.parsing.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "apps.core.api.schema.Schema",
    "EXCEPTION_HANDLER": "apps.core.api.problems.answer_for",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Switchyard",
    "DESCRIPTION": "Jobs, the facility they run in, and why each of them waits or runs.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",  # pydantic writes JSON Schema 2020-12, in which null is a type
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": [],  # choices stay where they are used
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# --- Celery -------------------------------------------------------------------------------------------------------

BROKER_DIR = VAR_DIR / "broker"
CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL") or "switchyard-files://localhost"
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, object] = (
    {"data_folder_in": str(BROKER_DIR), "data_folder_out": str(BROKER_DIR), "polling_interval": 0.05}
    if CELERY_BROKER_URL.startswith("switchyard-files:")
    else {}
)

# --- Limits ---------------------------------------------------------------------------------------------------------

# Bytes of one REST body: of a single thing, and of many at once.
SWITCHYARD_LONGEST_BODY = environment.count("LONGEST_BODY", int(2.5 * _MIB))
SWITCHYARD_LONGEST_BULK_BODY = environment.count("LONGEST_BULK_BODY", 16 * _MIB)

# Failed sign-ins before the next has to wait, of one account and of one address; 0 of an account: never.
SWITCHYARD_SIGN_IN_FAILURES = environment.count("SIGN_IN_FAILURES", 5)
SWITCHYARD_SIGN_IN_FAILURES_PER_ADDRESS = environment.count("SIGN_IN_FAILURES_PER_ADDRESS", 50)
SWITCHYARD_SIGN_IN_LONGEST_WAIT_S = environment.count("SIGN_IN_LONGEST_WAIT_S", 900)
# By a person, and by an address; 0 is no limit. Submitting has none: the queue is made for many.
SWITCHYARD_PREVIEWS_PER_MINUTE = environment.count("PREVIEWS_PER_MINUTE", 120)
SWITCHYARD_WRONG_TOKENS_PER_MINUTE = environment.count("WRONG_TOKENS_PER_MINUTE", 30)
SWITCHYARD_PROGRESS_PER_MINUTE = environment.count("PROGRESS_PER_MINUTE", 120)  # posts of one job

# The last passes of the planner that are kept as files for replay, each whole; 0: only those that were refused.
SWITCHYARD_KEPT_DUMPS = environment.count("KEPT_DUMPS", 0)

# --- Power -----------------------------------------------------------------------------------------------------------

# Of the ledger of losses; 0: each event by itself.
SWITCHYARD_QOS_WINDOW_S = environment.count("QOS_WINDOW_S", 0)
SWITCHYARD_CURRENCY = os.environ.get("CURRENCY", "USD")  # ISO 4217, of prices and penalties of programmes

# --- Notices ---------------------------------------------------------------------------------------------------------

EMAIL_HOST = os.environ.get("EMAIL_HOST", "")
EMAIL_PORT = environment.count("EMAIL_PORT", 25)
EMAIL_HOST_USER = os.environ.get("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("EMAIL_HOST_PASSWORD", "")
EMAIL_USE_TLS = environment.flag("EMAIL_USE_TLS", False)
EMAIL_USE_SSL = environment.flag("EMAIL_USE_SSL", False)
EMAIL_TIMEOUT = 15
DEFAULT_FROM_EMAIL = os.environ.get("EMAIL_FROM", "switchyard@localhost")
# Nobody makes this site speak with what only it can reach, unless whoever runs it says so.
SWITCHYARD_WEBHOOK_ALLOWED = environment.words("WEBHOOK_ALLOWED", [])

# --- Staging ---------------------------------------------------------------------------------------------------------

# Stores of data lie within these and nowhere else: folders, host:/folders, s3://bucket/prefixes. Who may name stores
# could otherwise read and fill every folder of the service's user.
SWITCHYARD_STORE_ROOTS = environment.words("STORE_ROOTS", [str(VAR_DIR / "stores")])
SWITCHYARD_TRANSFERS_AT_ONCE = environment.count("TRANSFERS_AT_ONCE", 4)
SWITCHYARD_RSH = os.environ.get("STAGING_RSH", "")  # reaches other machines for rsync; empty: ssh, by key

# Where jobs reach this site, to post their progress.
SWITCHYARD_URL = environment.own_url(ALLOWED_HOSTS if "ALLOWED_HOSTS" in os.environ else [], is_https=HTTPS)

# --- Between the rooms --------------------------------------------------------------------------------------------

# Lower rooms reach these by name, because imports go down the stairs only.
SWITCHYARD_ADMISSION = "apps.scheduling.admission.require_possible"
SWITCHYARD_LINE = "apps.scheduling.line.ahead_of_jobs"
SWITCHYARD_CURTAILED_JOBS = "apps.jobs.curtailed.facts_of_jobs"
SWITCHYARD_TOKEN_AUTHENTICATOR = "apps.jobs.tokens.authenticate"  # noqa: S105  (a function, no secret)
SWITCHYARD_WRONG_TOKEN_COUNTER = "apps.teams.throttles.note_wrong_token"  # noqa: S105  (a function, no secret)
SWITCHYARD_IDEMPOTENT_ANSWERS = "teams.IdempotentAnswer"
# Roles that must be seen in the database before /readyz says yes.
SWITCHYARD_READY_ROLES = environment.words(
    "READY_ROLES", ["planning", "execution", "power", "beat", "watchdog"]
)
# Real facility and workload traces; tests that read them say so when they are absent.
SWITCHYARD_TRACES = Path(os.environ.get("SWITCHYARD_TRACES", BASE_DIR.parent / "shared" / "traces"))

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO")},
    "loggers": {
        "django.request": {"level": "ERROR"},
        "django.server": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},  # a line for every question
    },
}
