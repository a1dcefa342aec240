"""Maps the names that Go's crypto/tls gives to TLS versions and cipher suites to those of OpenSSL.

Rule: the one list of names that `--tls-min-version` and `--tls-cipher-suites` accept; whoever configures an
`ssl.SSLContext` looks the names up here.
"""

from collections.abc import Mapping
from types import MappingProxyType

# The peer refuses versions below 1.2 (llm-d-router pkg/sidecar/proxy/options.go, parseTLSVersion).
# Values are members of ssl.TLSVersion.
MIN_VERSIONS: Mapping[str, str] = MappingProxyType({"VersionTLS12": "TLSv1_2", "VersionTLS13": "TLSv1_3"})

# tls.CipherSuites() of Go 1.22 and later for TLS 1.2: the suites without known weaknesses. Values are what
# ssl.SSLContext.set_ciphers takes.
CIPHER_SUITES: Mapping[str, str] = MappingProxyType(
    {
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    }
)

# The suites of TLS 1.3. Neither Go nor Python's ssl lets a server choose among them, so naming one changes
# nothing (Go crypto/tls, Config.CipherSuites: "TLS 1.3 ciphersuites are not configurable").
TLS13_SUITES = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
