package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// How a client connects: files in PEM form, and a login.
type security struct {
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	IsToken     bool   `json:"is_token"`
}

func (s security) tls() *tls.Config {
	authorities := x509.NewCertPool()
	text, err := os.ReadFile(s.CA)
	check(err)
	authorities.AppendCertsFromPEM(text)
	config := &tls.Config{RootCAs: authorities}
	if s.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
		check(err)
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func (s security) login() sasl.Mechanism {
	auth := scram.Auth{User: s.User, Pass: s.Password, IsToken: s.IsToken}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return auth.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return auth.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: s.Password}.AsMechanism()
	}
	check(fmt.Errorf("unknown mechanism %q", s.Mechanism))
	return nil
}

func (s security) options() []kgo.Opt {
	options := []kgo.Opt{}
	if s.CA != "" {
		options = append(options, kgo.DialTLSConfig(s.tls()))
	}
	if s.Mechanism != "" {
		options = append(options, kgo.SASL(s.login()))
	}
	return options
}

// Connects and logs in, or says why it may not.
func ping(ctx context.Context, asked question) answer {
	connection := client(asked)
	defer connection.Close()
	check(connection.Ping(ctx))
	return answer{}
}
