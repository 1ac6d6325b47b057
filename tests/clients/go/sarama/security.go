package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// How a client connects: files in PEM form, and a login.
type security struct {
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
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

func (s security) apply(config *sarama.Config) {
	if s.CA != "" {
		config.Net.TLS.Enable = true
		config.Net.TLS.Config = s.tls()
	}
	if s.Mechanism == "" {
		return
	}
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLMechanism(s.Mechanism)
	config.Net.SASL.User, config.Net.SASL.Password = s.User, s.Password
	config.Net.SASL.TokenProvider = bearer(s.Password)
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
		if s.Mechanism == sarama.SASLTypeSCRAMSHA256 {
			return &conversation{generator: scram.SHA256}
		}
		return &conversation{generator: scram.SHA512}
	}
}

// A bearer's token.
type bearer string

func (b bearer) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(b)}, nil
}

// SCRAM as sarama's own examples do it.
type conversation struct {
	*scram.ClientConversation
	generator scram.HashGeneratorFcn
}

func (c *conversation) Begin(user, password, authorization string) error {
	client, err := c.generator.NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

// Connects and logs in, or says why it may not.
func ping(asked question) answer {
	config := settings(asked)
	config.Metadata.Retry.Max = 0
	client, err := sarama.NewClient([]string{asked.Bootstrap}, config)
	check(err)
	check(client.Close())
	return answer{}
}
