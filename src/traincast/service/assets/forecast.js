// forecast
