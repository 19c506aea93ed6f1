package scriptedmodel_test

import "net/http"

// web is not http.DefaultClient: every httptest.Server that closes, closes connections of
// that one, also those that another test is just making.
var web = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
